"""`python -m tests.on_citus BINARIES [pytest's arguments]`: the tests, on a Citus of three nodes.

BINARIES is the directory of the programs of a PostgreSQL with the extension, as `tests/build_citus.sh` makes
one.  A coordinator and two workers are made of it and thrown away.
"""

import os
import sys

import pytest

if __name__ == "__main__":
    binaries, *arguments = sys.argv[1:]
    os.environ["STACKMGR_TEST_CITUS"] = binaries
    sys.exit(pytest.main(arguments))
