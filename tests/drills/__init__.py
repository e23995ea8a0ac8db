"""Faults inflicted on the running service while clients use it: `python -m tests.drills --help`."""
