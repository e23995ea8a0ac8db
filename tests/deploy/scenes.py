"""Where the procedures of the pages are typed, and what no way through them may lose."""

import os
import re
import shutil
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import stackmgr
from stackmgr import paths
from tests.deploy.dba import Dba, Shell, save, sql
from tests.deploy.runbook import block, lines
from tests.operate.saved import MANAGER_ID, OTHER_MANAGER
from tests.support.clusters import cluster
from tests.support.processes import completed
from tests.support.releases import copy_source
from tests.support.server import free_port, running, send_request
from tests.support.waiting import eventually

DEPLOY = paths.directory("deploy")
DEBIAN = Path("/usr/lib/postgresql/15/bin")
TABLES = ("managers", "stacks", "stack_revisions", "creation_receipts", "api_keys")


def rows(url: str) -> list[str]:
    return sorted(
        f"{table} {row}"
        for table in TABLES
        for (row,) in sql(url, f"SELECT saved::text FROM stackmgr.{table} AS saved")
    )


class Servers(Dba):
    """A source, a target, and a copy of the source; each way begins with the same rows."""

    def __init__(self, binaries: Path) -> None:
        super().__init__(binaries, prefix="stackmgr dba ")
        source, target = self.make("source"), self.make("target")
        self.source, self.admin = self.begin(source), self.url(source, "postgres")
        save(self.source)
        for name in ("saved", "copy"):
            sql(self.admin, f"CREATE DATABASE {name} TEMPLATE stackmgr")
        self.run(f"pg_ctl -D '{target}' -w start")
        self.run(f"PGHOST='{target}.sock' psql -X -q -d postgres -f deploy/postgresql/roles.sql")
        self.target = self.url(target, "postgres")
        self.variables |= {
            "COPY": self.url(source, "copy"), "OLD": self.source, "NEW": self.url(source, "copy"),
            "SOURCE": f"postgresql://postgres@/stackmgr?host={quote(source, safe='')}.sock",
            "TARGET": self.url(target),
        }  # fmt: skip
        self.databases = {name: self.url(source, f"stackmgr_{name}") for name in ("parallel", "restored")}
        self.databases["target"] = self.variables["TARGET"]
        self.has_amcheck = sql(self.admin, "SELECT FROM pg_available_extensions WHERE name = 'amcheck'")

    def prepare(self, line: str) -> str:
        if "/pg_amcheck" in line and not self.has_amcheck:
            return "true"
        return line.replace("=2026-", "=2027-").replace("/opt/stackmgr/current/", "")

    def reset(self, section: str) -> None:
        target = self.variables["TARGET"]
        for (name,) in sql(self.target, "SELECT subname FROM pg_subscription"):
            for change in ("ALTER SUBSCRIPTION {} DISABLE", "ALTER SUBSCRIPTION {} SET (slot_name = NONE)"):
                sql(target, change.format(name))
            sql(target, f"DROP SUBSCRIPTION {name}")
        query = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
        eventually(lambda: sql(self.admin, query) or not sql(self.admin, "TABLE pg_replication_slots"))
        for url, made in ((self.admin, "saved"), (self.target, "template0")):
            for name in ("stackmgr", "stackmgr_parallel", "stackmgr_restored"):
                sql(url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            sql(url, f"CREATE DATABASE stackmgr TEMPLATE {made}")
        self.run(f"rm -rf {MANAGER_ID} stackmgr.* revisions-*.tsv* *.txt")
        is_erased = section == "Archive old revisions"  # no saved manager's lines may go
        self.variables["MANAGER_ID"] = OTHER_MANAGER if is_erased else MANAGER_ID
        if section == "After any restore":
            sql(self.source, "UPDATE stackmgr.api_keys SET revoked_at = now() WHERE revoked_at IS NULL")

    def kept(self) -> list[str]:
        return rows(self.source)

    def assert_reached(self, made: str) -> None:
        if made in self.databases:
            eventually(lambda: rows(self.databases[made]) == self.kept(), 30)
        elif made == "poolers":
            settings = "SELECT count(*)::integer FROM pg_db_role_setting, unnest(setconfig)"
            script = (DEPLOY / "postgresql/pooler.sql").read_text()
            assert sql(self.admin, settings) == [(script.count("\nALTER ROLE"),)]


class Majors(Dba):
    """A cluster of PostgreSQL 15 that is stopped, and the programs of 18."""

    def __init__(self, binaries: Path) -> None:
        super().__init__(DEBIAN, prefix="stackmgr dba ")
        if not DEBIAN.exists():
            pytest.skip("needs Debian's postgresql-15")
        if "no-data-checksums" not in completed([binaries / "initdb", "--help"]).stdout:
            pytest.skip("the block is printed for 18")
        self.old, self.new = self.make("old"), str(self.folder / "new")
        save(url := self.begin(self.old))
        query = "SELECT attoptions FROM pg_attribute WHERE attoptions::text !~ 'n_distinct' LIMIT 1"
        if unknown := sql(url, query):
            self.close()
            pytest.skip(f"this PostgreSQL 15 stores an option that 18 may not read: {unknown[0][0]}")
        self.run(f"pg_ctl -D '{self.old}' -m fast stop; cp -a old saved")
        self.variables |= {"OLD": self.old, "NEW": self.new, "PGHOST": f"{self.new}.sock"}
        self.variables |= {"OLD_BIN": str(DEBIAN), "NEW_BIN": str(binaries)}
        self.variables["PATH"] = self.variables["PATH"].replace(str(DEBIAN), str(binaries))
        settings = f"listen_addresses = ''\\nunix_socket_directories = '{self.new}.sock'\\n"
        self.stand_ins = (
            'initdb() { command initdb -N "$@" && mkdir "$NEW.sock"'
            f' && printf "{settings}" >> "$NEW/postgresql.conf"; }}\n'
        )

    def prepare(self, line: str) -> str:
        return line

    def reset(self, section: str) -> None:
        self.run("pg_ctl -D new -m immediate stop || :; rm -rf new new.sock old; cp -a saved old")

    def kept(self) -> list[str]:
        with suppress(psycopg.OperationalError):
            return rows(self.url(self.new))
        self.run(f"'{DEBIAN}/pg_ctl' -D old -w start")
        found = rows(self.url(self.old))
        self.run("pg_ctl -D old -m fast stop")
        return found

    def assert_reached(self, made: str) -> None:
        self.run("pg_ctl -D new -w start || :")
        assert rows(self.url(self.new))


# Of root's shell: an editor whose changes are not made again, and units of which only a reload has an effect.
STAND_INS = """
umask 077
logger() {{ :; }}
editor() {{ for f; do [ -e "$f.edited" ] || {{ cat "{0}/${{f##*/}}" >> "$f"; touch "$f.edited"; }}; done; }}
nginx() {{ :; }}
systemctl() {{ [ "$*" != "reload stackmgr" ] || kill -s HUP "$MASTER"; }}
cd "{0}/the release"
"""
PIP = f"'{sys.executable}' -m pip --disable-pip-version-check -q"


class Releases(Shell):
    """Root's shell of a host, whose /opt and /etc are here, in a folder with the files of two releases."""

    def __init__(self, binaries: Path) -> None:
        super().__init__(binaries)
        self.stack, self.serving, self.is_installed = ExitStack(), ExitStack(), False
        server = self.stack.enter_context(cluster(binaries))
        self._as, self.port, self.url = {}, free_port(), make_conninfo(server, dbname="stackmgr")
        self.variables["PGHOST"] = str(conninfo_to_dict(server)["host"])
        self.run("mkdir -p 'the release' opt/stackmgr etc/nginx/conf.d etc/systemd/system")
        for version in ("1.0.0", "1.1.0"):
            self._make(version)
        shutil.copy(DEPLOY / "bootstrap.sh", self.folder / "the release")
        (self.folder / "the release" / "install").write_text(self.prepare((DEPLOY / "install").read_text()))
        download = f"{PIP} download --require-hashes -d wheels -r stackmgr-1.0.0-requirements.txt"
        self.run(f"cd 'the release'; {download}; sha256sum stackmgr-* > SHA256SUMS", **os.environ)
        self.variables |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "wheels"}
        for file, user in (("stackmgr.env", "service"), ("operator.env", "operator"), ("stackmgr.conf", "")):
            url = make_conninfo(self.url, user=f"stackmgr_{user}")
            (self.folder / file).write_text(f"STACKMGR_DATABASE_URL='{url}'\n")
        functions = self.prepare(block("Runbook", "stackmgr() {"))
        self.stand_ins += functions + STAND_INS.format(self.folder)

    def _make(self, version: str) -> None:
        source, to = copy_source(self.folder / "source"), self.folder / "the release"
        module = source / "stackmgr" / "__init__.py"
        module.write_text(module.read_text().replace(stackmgr.__version__, version))
        self.run(f"cd source; {PIP} wheel --no-deps --no-build-isolation -w '{to}' .", **os.environ)
        shutil.copy(DEPLOY / "locks" / "runtime.txt", to / f"stackmgr-{version}-requirements.txt")
        shutil.rmtree(source)

    def prepare(self, line: str) -> str:
        text = line.replace("/opt/stackmgr", f"{self.folder}/opt/stackmgr").replace("9108", str(self.port))
        return re.sub(r"(?<!\w)/etc/(?=stackmgr|systemd|nginx)", f"{self.folder}/etc/", text)

    def reset(self, section: str) -> None:
        self.serving.close()
        if section == "Installation":
            sql(make_conninfo(self.url, dbname="postgres"), "DROP DATABASE IF EXISTS stackmgr WITH (FORCE)")
            self.run("find etc -type f -delete")
            self.is_installed = False
            return
        if not self.is_installed:
            assert self.type("\n".join(map(self.prepare, lines("Installation")))) == []
            self.is_installed = True
        self.run("ln -sfn 1.0.0 opt/stackmgr/current")
        [command] = re.findall(r"^ExecStart=(.*)$", (DEPLOY / "stackmgr.service").read_text(), re.MULTILINE)
        env = {"STACKMGR_DATABASE_URL": self.url, "STACKMGR_ADMIN_BIND": f"127.0.0.1:{self.port}"}
        service = running(self.prepare(command).split(), env=env, cwd=self.folder)
        self.variables["MASTER"] = str(self.serving.enter_context(service).pid)

    def kept(self) -> list[str]:
        files = [file for file in self.folder.glob("etc/**/*") if file.is_file()]
        found = [f"{file} {line}" for file in files for line in file.read_text().splitlines()]
        with suppress(psycopg.Error):
            found += rows(self.url)
        return found

    def live_on(self) -> None:
        self.run("find etc -type f -exec sh -c 'echo \"# changed later\" >> $1' sh {} ';'")

    def assert_reached(self, made: str) -> None:
        if made:
            assert made in send_request(self.port, "/live")[1]
            assert (self.folder / "opt/stackmgr/current").readlink() == Path(made)
        else:
            check = block("Check of a host", "stackmgr check").splitlines()[0]
            assert self.type(self.prepare(check)) == []
        self.run("! find opt/stackmgr -name __pycache__ -prune -o ! -type l ! -perm -o=r -print | grep .")

    def close(self) -> None:
        self.serving.close()
        self.stack.close()
        super().close()
