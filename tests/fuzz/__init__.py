"""Seeded fuzzers of every parser: `python -m tests.fuzz --inputs N [--only NAME] [--seed S]`."""
