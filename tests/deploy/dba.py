"""A DBA's shell: what deploy/ gives to run, on servers of a test's own."""

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stackmgr import paths
from stackmgr.operate import migrations
from tests.operate import saved
from tests.support.memory import memory

SETTINGS = "listen_addresses = ''\nunix_socket_directories = '{}'\nwal_level = logical\nfsync = off\n"
# `db` is this host, on which every user is this one.
HERE = 'ssh() { [ "$1" != -t ] || shift; shift; eval "$*"; }; sudo() { shift 2; "$@"; }\n'


class Shell:
    """A shell of the user that PostgreSQL runs as, in a folder with `deploy` and the servers' directories."""

    def __init__(self, binaries: str | Path, prefix: str = "stackmgr-") -> None:
        try:
            self.user = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:
            pytest.skip("initdb needs a user with a name")
        self._folder = tempfile.TemporaryDirectory(prefix=prefix, dir=memory())
        self.folder = Path(self._folder.name)
        self.stand_ins = HERE
        # A copy: that user may not be able to read the checkout.
        shutil.copytree(paths.directory("deploy"), self.folder / "deploy")
        self.variables = {"PATH": f"{binaries}:{os.environ['PATH']}", "PGUSER": "postgres"}
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            self.user = "nobody"
            nobody = pwd.getpwnam("nobody")
            for path in (self.folder, *self.folder.rglob("*")):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def run(self, command: str, stdin: str = "", **variables: str) -> str:
        log = self.folder / "log"
        # To a file: a server that is started would keep a pipe open.
        with log.open("ab") as output:
            begin = output.tell()
            ended = subprocess.run(
                ["/bin/sh", "-euc", command], cwd=self.folder, env=self.variables | variables,
                input=stdin.encode(), stdout=output, stderr=output, start_new_session=True, check=False,
                **self._as,
            )  # fmt: skip
        assert ended.returncode == 0, f"{command}: {log.read_text(errors='replace')[-5000:]}"
        return log.read_bytes()[begin:].decode(errors="replace")

    def type(self, commands: str, **variables: str) -> list[str]:
        """Type *commands* into an interactive shell, also after one that fails; return those that fail."""
        lines, typed = commands.splitlines(), ""
        for number, line in enumerate(lines):
            self.run(f"cat > line-{number}", line)
            typed += f". '{self.folder}/line-{number}' </dev/null && echo done {number} >&3\n"
        self.run("cat > rc", f"set +H\n{self.stand_ins}")
        shell = "rm -f done; touch done; timeout 300 bash --noprofile --rcfile rc -i 3>>done"
        self.run(f"{shell} || :", typed, **variables)
        done = (self.folder / "done").read_text().split()
        return [line for number, line in enumerate(lines) if str(number) not in done]

    def close(self) -> None:
        for pid_file in self.folder.glob("**/postmaster.pid"):
            with suppress(AssertionError):
                self.run(f"pg_ctl -D '{pid_file.parent}' -w -m immediate stop")
        self._folder.cleanup()


class Dba(Shell):
    """A shell with clusters; the programs use the one that was begun last."""

    def make(self, name: str) -> str:
        data = self.folder / name
        self.run(f"initdb -N -D '{data}' -U postgres -E UTF8 --locale=C")
        self.run(f"mkdir '{data}.sock'; cat >> '{data}/postgresql.conf'", SETTINGS.format(f"{data}.sock"))
        return str(data)

    def url(self, data: str, database: str = "stackmgr", user: str = "postgres") -> str:
        return f"host='{data}.sock' user={user} dbname={database}"

    def begin(self, data: str) -> str:
        self.run(f"pg_ctl -D '{data}' -w start")
        self.variables["PGHOST"] = f"{data}.sock"
        self.run("psql -X -q -d postgres -f deploy/postgresql/roles.sql")
        migrations.apply(self.url(data))
        return self.url(data)


def sql(url: str, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True, options="-c TimeZone=UTC") as connection:
        cursor = connection.execute(query.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


def save(url: str) -> None:
    with psycopg.connect(url) as connection:
        saved.save(connection)
