"""Bundles, read and validated."""
