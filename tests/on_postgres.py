"""`python -m tests.on_postgres BINARIES [pytest's arguments]`: the tests, on another PostgreSQL.

BINARIES is a directory such as /usr/lib/postgresql/15/bin; a cluster is made of it and thrown away.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.support.clusters import cluster

if __name__ == "__main__":
    binaries, *arguments = sys.argv[1:]
    with cluster(Path(binaries)) as url:
        os.environ["STACKMGR_TEST_DATABASE_URL"] = url
        status = pytest.main(arguments)
    sys.exit(status)
