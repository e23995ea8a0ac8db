"""gunicorn's master, changed where one failure would stop or end the whole service.

- A reload that cannot succeed is refused: the workers keep serving.
- At a reload, the old workers end once the new ones serve, not when those have been forked.
- A worker that cannot be forked is tried again, as one is that cannot boot: see `Worker.init_process`.
- systemd is notified once a worker serves.

The master imports this module: it must import nothing of the service.
"""

import os
import signal
import time
from typing import Any

from gunicorn import __version__, systemd

BOOT_SECONDS = 30.0  # a reload waits so long for the new workers
POLL_INTERVAL = 0.05  # seconds

_REQUIRED = (
    "WORKERS", "app", "cfg", "kill_worker", "manage_workers", "num_workers", "pid", "reap_workers", "reload",
    "setup", "spawn_worker", "worker_age",
)  # fmt: skip


class _ReloadRefused(Exception):
    """The new workers do not serve."""


def _serves(worker: Any) -> bool:
    """Whether the worker has sent a heartbeat: its file then has the monotonic time, not the clock's."""
    try:
        return bool(worker.tmp.last_update() <= time.monotonic())
    except (OSError, ValueError):  # it has ended
        return False


class Master:
    """Replaces methods of gunicorn's arbiter *server*.  Raises RuntimeError if it lacks one."""

    def __init__(self, server: Any) -> None:
        if missing := [name for name in _REQUIRED if not hasattr(server, name)]:
            raise RuntimeError(f"gunicorn {__version__} is not supported: no Arbiter.{', '.join(missing)}")
        self._server = server
        self._reload, self._manage_workers = server.reload, server.manage_workers
        self._spawn_worker = server.spawn_worker
        self._oldest_new: int | None = None  # the age of the first new worker, during a reload
        self._notify_socket = os.environ.pop("NOTIFY_SOCKET", "")  # else gunicorn would use it before a fork
        server.reload, server.manage_workers = self.reload, self.manage_workers
        server.spawn_worker = self.spawn_worker

    def reload(self) -> None:
        """Replace the workers, or log why not."""
        server, cfg = self._server, self._server.app.cfg
        self._oldest_new = server.worker_age + 1
        try:
            self._reload()
        except (_ReloadRefused, OSError, SystemExit) as ex:
            if os.getpid() != server.pid:  # a new worker, forked below this frame, exits
                raise
            if isinstance(ex, OSError):
                server.log.error("The reload failed: %s", ex.strerror)  # noqa: TRY400
            server.log.error(  # noqa: TRY400 - the reasons are logged; a traceback adds nothing
                "The reload is refused for the reasons above; the workers keep serving as before"
            )
            server.app.cfg = cfg
            if server.cfg is not cfg:
                server.setup(server.app)
        finally:
            self._oldest_new = None

    def spawn_worker(self) -> None:
        """Fork a worker; if that fails, the next `manage_workers` tries again."""
        try:
            self._spawn_worker()
        except OSError as ex:
            self._server.log.error("A worker could not be started: %s; trying again", ex.strerror)  # noqa: TRY400

    def manage_workers(self) -> None:
        """Start workers that are missing, and end those that are too many once the others serve."""
        workers = self._server.WORKERS
        if self._oldest_new is not None:
            self._wait_for_new_workers(self._oldest_new)
        elif len(workers) > self._server.num_workers and not all(map(_serves, workers.values())):
            return
        self._manage_workers()
        if self._notify_socket and any(map(_serves, workers.values())):
            os.environ["NOTIFY_SOCKET"], self._notify_socket = self._notify_socket, ""
            systemd.sd_notify("READY=1\nSTATUS=serving", self._server.log, unset_environment=True)

    def _wait_for_new_workers(self, oldest_new: int) -> None:
        """Return once as many new workers serve as are wanted, or end them and raise _ReloadRefused."""
        workers, deadline = self._server.WORKERS, time.monotonic() + BOOT_SECONDS
        while True:
            new = {pid: worker for pid, worker in workers.items() if worker.age >= oldest_new}
            has_failed = len(new) < self._server.num_workers or time.monotonic() > deadline
            if has_failed or all(map(_serves, new.values())):
                break
            time.sleep(POLL_INTERVAL)
            self._server.reap_workers()
        if has_failed:
            self._server.log.error("The new workers do not serve")
            for pid in new:
                self._server.kill_worker(pid, signal.SIGTERM)
            raise _ReloadRefused
