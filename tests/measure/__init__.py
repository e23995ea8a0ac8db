"""Measurements, which are no tests: the benchmark and the long runs of README.md.

Load, service and PostgreSQL share the machine: quote ratios within one run, not absolute figures.

The parser of a small head, in microseconds: `stackmgr.server.request` 3 for all its lines, gunicorn's in
Python 27, in C (gunicorn_h1c 0.6.10) 18.  The latter accepts two spaces in a request line, control bytes
in a chunk extension and a trailer without a colon, and raises not only `ParseError`.
"""
