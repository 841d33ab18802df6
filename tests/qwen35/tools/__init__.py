"""Acceptance run, benchmark and check."""
