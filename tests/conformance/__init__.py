"""The contract as a client of any deployment sees it: `python -m tests.conformance URL`."""
