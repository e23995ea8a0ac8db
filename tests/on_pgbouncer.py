"""`python -m tests.on_pgbouncer PROGRAM [pytest's arguments]`: the tests, through a PgBouncer.

PROGRAM is a PgBouncer such as /usr/sbin/pgbouncer.  It runs with deploy/pgbouncer.ini, in transaction mode;
the application's connections lead through it, and those of the tests themselves do not.
"""

import os
import sys

import pytest

if __name__ == "__main__":
    program, *arguments = sys.argv[1:]
    os.environ["STACKMGR_TEST_PGBOUNCER"] = program
    sys.exit(pytest.main(arguments))
