"""Measurements, which are no tests: the benchmark and the long runs of README.md.

Load, service and PostgreSQL share the machine: quote ratios within one run, not absolute figures.
"""
