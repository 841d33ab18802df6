"""Number formats of weights."""
