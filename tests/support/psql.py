"""Run psql, and by it the files of `deploy/support/`."""

from pathlib import Path
from subprocess import CompletedProcess

from stackmgr import paths
from tests.support.clusters import binaries_of
from tests.support.processes import completed

SUPPORT = paths.directory("deploy") / "support"


def run_psql(url: str, *arguments: str | Path, binaries: Path | None = None) -> CompletedProcess[str]:
    """Run psql on a database, by default the one of its server: a superuser's URL leads to that."""
    return completed([(binaries or binaries_of(url)) / "psql", "-X", "-d", url, *arguments])


def audit(url: str) -> str:
    ran = run_psql(url, "-At", "-f", SUPPORT / "audit.sql")
    assert ran.returncode == (3 if ran.stdout else 0), ran.stderr
    return ran.stdout
