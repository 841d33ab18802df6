"""Bundles, made."""
