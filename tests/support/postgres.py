"""A PostgreSQL whose processes a test can freeze, kill and restart."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import psycopg

from stackmgr.dev.embedded_postgres import EmbeddedPostgres
from stackmgr.operate import migrations
from tests.support.clusters import accepts
from tests.support.memory import memory, reachable
from tests.support.waiting import eventually


class FaultyPostgres(EmbeddedPostgres):
    """An embedded server, with the service's schema; `logs` holds what earlier starts have logged.

    It is of the binaries that STACKMGR_TEST_POSTGRES names.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        reachable(folder.parent)
        self.logs: list[str] = []

    def choose_user(self) -> None:
        super().choose_user()
        self.programs = Path(os.environ.get("STACKMGR_TEST_POSTGRES") or self.programs)

    def prepare(self) -> None:
        self.ensure_database()
        migrations.apply(self.url())

    def follow(self, conninfo: str) -> None:
        self.choose_user()
        self.take_ownership(self.folder)
        options = ("--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--dbname", conninfo)
        command = [str(self.programs / "pg_basebackup"), *options, "--pgdata", str(self.folder)]
        copied = subprocess.run(command, check=False, cwd="/", capture_output=True, **self.run_as)
        assert copied.returncode == 0, copied.stderr
        # The other's socket lies among its data, and so does the claim to it.
        (self.folder / ".s.PGSQL.5432.lock").unlink(missing_ok=True)

    @property
    def socket_path(self) -> str:
        return f"{self.socket_folder}/.s.PGSQL.5432"

    def processes(self) -> list[psutil.Process]:
        if self.process is None or self.process.poll() is not None:
            return []
        postmaster = psutil.Process(self.process.pid)
        return [postmaster, *postmaster.children()]

    def freeze(self) -> None:
        """Suspend every process; the sockets stay open and the kernel keeps accepting connections."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def thaw(self) -> None:
        for process in reversed(self.processes()):
            with suppress(psutil.NoSuchProcess):
                process.resume()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    def kill_backend(self, pid: int) -> None:
        doomed = self.processes()[1:]
        os.kill(pid, signal.SIGKILL)
        _, left = psutil.wait_procs(doomed, 60)
        assert not left

    def terminate_backend(self, pid: int) -> None:
        os.kill(pid, signal.SIGTERM)

    def crash(self) -> None:
        doomed = self.processes()
        for process in doomed:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(doomed, 60)

    def stop(self, mode: signal.Signals = signal.SIGINT) -> None:
        processes = self.processes()
        processes[0].send_signal(mode)
        psutil.wait_procs(processes, 60)

    def read_log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")

    def start(self) -> None:
        if self.process is not None:
            self.logs.append(self.read_log())
        super().start()

    def accepts(self) -> bool:
        return accepts(self.url())

    def restore(self) -> None:
        self.thaw()
        if not self.processes():
            (self.folder / "postgresql.auto.conf").write_bytes(b"")
            self.start()
        eventually(self.accepts)
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(b"ALTER SYSTEM RESET ALL")
            connection.execute(b"SELECT pg_reload_conf()")


@contextmanager
def standby_by(port: int) -> Iterator[FaultyPostgres]:
    """Run a standby, named so, of the primary to which a *port* of this host leads."""
    with TemporaryDirectory(prefix="stackmgr-standby-") as folder:
        standby = FaultyPostgres(Path(folder) / "data")
        standby.follow(f"host=127.0.0.1 port={port} user=postgres application_name=standby")
        with standby:
            yield standby


@contextmanager
def faulty_postgres() -> Iterator[FaultyPostgres]:
    """Run a server with the service's schema, outside pytest's folder, which its user cannot enter."""
    with (
        TemporaryDirectory(prefix="stackmgr-", dir=memory()) as folder,
        FaultyPostgres(Path(folder) / "data") as server,
    ):
        server.prepare()
        yield server
