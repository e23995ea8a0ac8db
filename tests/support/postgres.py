"""A PostgreSQL of a test's own, whose processes may be frozen, killed and brought back."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg

from stackmgr.database import migrations
from stackmgr.dev import embedded_postgres
from stackmgr.dev.embedded_postgres import EmbeddedPostgres

_CARELESS = b"""
    CREATE FUNCTION public.careless() RETURNS event_trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_catalog.set_config('synchronous_commit', 'off', false);
    END $$;
    CREATE EVENT TRIGGER careless ON login EXECUTE FUNCTION public.careless();
"""


def eventually(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Return once *condition* holds; fail when it does not come to hold within *seconds*."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.01)


class FaultyPostgres(EmbeddedPostgres):
    """An embedded server, with the service's schema, that can be made to fail in earnest.

    `network_address` is the host and port of a server that has a network of its own; `logs` holds what
    earlier starts have logged.
    """

    network_address: tuple[str, int] | None = None

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.logs: list[str] = []

    def prepare(self) -> None:
        """Create the service's database and its schema."""
        self.ensure_database()
        migrations.apply(self.url())

    def follow(self, conninfo: str) -> None:
        """Become, before the first start, a standby of the server that *conninfo* leads to."""
        if os.geteuid() == 0:
            self._settle_user()
            embedded_postgres._let_pass(self._folder)
        self._give(self._folder)
        program = embedded_postgres.programs() / "pg_basebackup"
        options = ("--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        command = [program, "--dbname", conninfo, "--pgdata", self._folder, *options]
        copied = subprocess.run(command, check=False, cwd="/", capture_output=True, **self._run_as)
        assert copied.returncode == 0, copied.stderr
        # The other's socket lies among its data, and so does the claim to it.
        (self._folder / ".s.PGSQL.5432.lock").unlink(missing_ok=True)

    @property
    def socket_path(self) -> str:
        return f"{self._sockets}/.s.PGSQL.5432"

    def processes(self) -> list[psutil.Process]:
        """Return the postmaster and its children, in this order."""
        if self._process is None or self._process.poll() is not None:
            return []
        postmaster = psutil.Process(self._process.pid)
        return [postmaster, *postmaster.children()]

    def freeze(self) -> None:
        """Stop every process where it stands; the sockets stay open and the kernel goes on accepting."""
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
        """Kill one backend as the kernel does when memory runs out: PostgreSQL restarts all the others."""
        os.kill(pid, signal.SIGKILL)

    def terminate_backend(self, pid: int) -> None:
        """End one backend as an operator does, with pg_terminate_backend."""
        os.kill(pid, signal.SIGTERM)

    def crash(self) -> None:
        """Kill every process at once."""
        doomed = self.processes()
        for process in doomed:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(doomed, 10)

    def stop(self, mode: signal.Signals = signal.SIGINT) -> None:
        """Shut down: SIGINT is PostgreSQL's fast mode, SIGQUIT its immediate one."""
        processes = self.processes()
        processes[0].send_signal(mode)
        psutil.wait_procs(processes, 10)

    def read_log(self) -> str:
        return (self._folder / "server.log").read_text(errors="replace")

    def start(self) -> None:
        """Start again after `crash` or `stop`."""
        self.logs.append(self.read_log())
        self._start(embedded_postgres.programs() / "postgres", self._undo)

    @contextmanager
    def careless(self) -> Iterator[None]:
        """Have new connections wait for no commit, whatever they ask for, and write it late."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(_CARELESS)
            connection.execute(b"ALTER SYSTEM SET wal_writer_delay = '10s'")
            connection.execute(b"SELECT pg_reload_conf()")
        yield
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(b"DROP EVENT TRIGGER careless; DROP FUNCTION public.careless")
            connection.execute(b"ALTER SYSTEM RESET wal_writer_delay")
            connection.execute(b"SELECT pg_reload_conf()")

    def accepts(self) -> bool:
        """Whether the server lets anybody in."""
        try:
            with psycopg.connect(self.url(), connect_timeout=2):
                return True
        except psycopg.OperationalError:
            return False

    def restore(self) -> None:
        """Bring it back with its settings as they were made, whatever has been done to it."""
        self.thaw()
        if not self.processes():
            (self._folder / "postgresql.auto.conf").write_bytes(b"")
            self.start()
        eventually(self.accepts)
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(b"ALTER SYSTEM RESET ALL")
            connection.execute(b"SELECT pg_reload_conf()")
