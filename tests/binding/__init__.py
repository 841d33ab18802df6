"""The binding: buffers, contexts, runs, pools, the seam, and what a driver may do to them."""
