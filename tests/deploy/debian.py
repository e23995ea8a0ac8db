"""A Debian host whose /etc, cluster and repository are in a folder with a space in its name."""

import re
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from stackmgr import paths
from tests.deploy.dba import Shell, sql
from tests.deploy.runbook import blocks
from tests.support.waiting import eventually

PAGE = paths.directory("deploy") / "DATABASE.md"
ROOTS, SETUP, STOP, EVERYTHING, TO_TIME, WAL, START, CHECK, COPY = blocks("Point-in-time recovery", PAGE)
UNIT = (PAGE.parent / "postgresql" / "stackmgr-backup.service").read_text()
PLACES = "log-path={0}/logs\nlock-path={0}/lock\nspool-path={0}/spool\n"


class Host(Shell):
    """A primary with a repository; each time that it is reset, it has saved two rows more."""

    def __init__(self, *options: str) -> None:
        for program in ("pgbackrest", "pg_createcluster", "jq"):
            if not shutil.which(program):
                pytest.skip(f"needs {program}")
        super().__init__("/usr/lib/postgresql/15/bin", prefix="stackmgr dba ")
        self.number, self.last = 0, 0
        self.data, self.copy = self.folder / "main", self.folder / "a copy"
        self.repository = self.folder / "repository"
        conf = self.folder / "etc/pgbackrest/pgbackrest.conf"
        self.variables |= {
            "PG_CLUSTER_CONF_ROOT": f"{self.folder}/etc/postgresql", "PGBACKREST_CONFIG": str(conf),
            "PGHOST": str(self.folder), "PGUSER": self.user, "PGDATABASE": "postgres", "DATA": str(self.data),
            "COPY_DATA": str(self.copy),
        }  # fmt: skip
        shipped = (PAGE.parent / "postgresql" / "pgbackrest.conf").read_text()
        text = shipped.replace("/var/lib/pgbackrest", str(self.repository))
        text = text.replace("/var/lib/postgresql/15/main", f"{self.data}\npg1-socket-path={self.folder}")
        places = PLACES.format(self.folder) + "".join(f"{option}\n" for option in options)
        self.write("edited", text.replace("\n[global:restore]", f"\n{places}\n[global:restore]"))
        self.stand_ins += f"editor() {{ cp '{self.folder}/edited' \"$1\"; }}\n"
        self.run(
            f"mkdir -p etc/postgresql etc/systemd/system repository logs; pg_createcluster -d '{self.data}'"
            f" -s '{self.folder}' -p 5432 -l '{self.folder}/logs/pg' 15 main"
            f" -- -U {self.user} -E UTF8 --locale=C -A trust -N"
        )
        etc = "etc/postgresql/15/main"
        self.write(f"{etc}/environment", f"PGBACKREST_CONFIG = '{conf}'\n")
        self.write(f"{etc}/conf.d/test.conf", "listen_addresses = ''\nfsync = off\n")
        self.run("pg_ctlcluster 15 main start")
        assert self.type(self.prepare(ROOTS + SETUP)) == []
        self.sql("CREATE TABLE public.rows (number integer)")
        self.backup()

    def write(self, path: str | Path, text: str) -> None:
        self.run(f"cat > '{path}'", text)

    def prepare(self, line: str) -> str:
        """Put this host's folder before each path in /etc; the log of a copy is here too."""
        text = re.sub(r"/etc(/(?:pgbackrest|postgresql|systemd)\S*)", rf"'{self.folder}/etc\1'", line)
        return text.replace("pg_ctl -D", "pg_ctl -l copy.log -D")

    def backup(self, kind: str = "full") -> None:
        check, back_up, verify = re.findall(r"^ExecStart=(\w.*)$", UNIT, re.MULTILINE)
        for command in (check, re.sub(r"--type=\$\(.*?\) ", f"--type={kind} ", back_up), verify):
            self.run(command.replace("%%", "%"))

    def sql(self, statement: str, port: int = 5432) -> list[tuple[object, ...]]:
        url = f"host='{self.folder}' port={port} user={self.variables['PGUSER']} dbname=postgres"
        return sql(url, statement)

    def add(self, number: int) -> str:
        self.sql(f"INSERT INTO public.rows VALUES ({number})")
        [(segment,)] = self.sql("SELECT pg_walfile_name(pg_switch_wal())")
        archived = f"SELECT last_archived_wal >= '{segment}' FROM pg_stat_archiver"
        eventually(lambda: self.sql(archived) == [(True,)], 30)
        return str(self.sql("SELECT clock_timestamp()::text")[0][0])

    def timeline(self) -> int:
        return int(str(self.sql("SELECT pg_walfile_name(pg_current_wal_lsn())")[0][0])[:8], 16)

    def rows(self, port: int = 5432) -> list[object]:
        return [number for (number,) in self.sql("SELECT number FROM public.rows ORDER BY number", port)]

    def recover(self, *more: str, time: str = "", timeline: int | None = 1, backup: str = "") -> list[str]:
        """Type the page's recovery; return the lines that failed, but for the stop of a dead server."""
        self.number += 1
        variables = {"OLD": f"{self.data}.{self.number}"}
        if time:
            variables |= {"TIME": time} | ({"TIMELINE": str(timeline)} if timeline else {})
        everything = EVERYTHING.replace(" restore", f" --set={backup} restore" if backup else " restore")
        steps = (STOP, TO_TIME if time else everything, *more, START, *([] if time else [CHECK]))
        failed = self.type("".join(steps), **variables)
        return [line for line in failed if not line.endswith(" stop")]

    def reset(self, made: str) -> None:
        with suppress(AssertionError):
            self.run("pg_ctl -D 'a copy' -m immediate stop")
        self.run("rm -rf 'a copy'")
        self.number += 2
        time, _ = self.add(self.number - 1), self.add(self.number)
        self.last = self.number - (made == "TIME")
        old = f"{self.data}.{self.number}"
        self.variables |= {"TIME": time, "TIMELINE": str(self.timeline()), "OLD": old}

    def kept(self) -> list[object]:
        return [row for row in self.rows() if row <= self.last]

    def assert_reached(self, made: str) -> None:
        if made == "COPY_DATA":
            eventually(lambda: self.sql("SELECT NOT pg_is_in_recovery()", 5433) == [(True,)], 30)
            assert self.rows(5433) == self.rows()[:-1]
            assert self.sql("SHOW archive_mode", 5433) == [("off",)]
