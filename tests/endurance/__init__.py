"""Long runs of writes under faults, and soaks: `python -m tests.endurance --help`."""
