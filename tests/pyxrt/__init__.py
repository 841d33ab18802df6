"""XRT's Python module, beside the real one."""
