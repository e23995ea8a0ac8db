"""Faults under load, each with a bound: `python -m tests.faults --help`."""
