"""gunicorn's master, changed where one failure would stop or end the service.

- A reload that cannot succeed is rejected: the workers keep serving and are replaced as before.
- The release on disk is checked before a reload.  Meanwhile the master does all its work.
- At a reload, the old workers end once the new ones serve, not when those have been forked.
- A signal to stop ends a reload that waits.
- A worker that hangs at its boot is replaced; gunicorn replaces only those that have served.
- Workers that stood still together with the master (`docker pause`) are not replaced.
- SIGUSR2 is rejected: a second master would share the metrics, and `-m gunicorn` cannot start.
- If a worker cannot be forked or cannot boot, the master tries again: see `Worker.init_process`.
- systemd is notified once a worker serves.

The master imports this module: of the service it must import nothing but `start_check`.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType, SimpleNamespace

from gunicorn import __version__, systemd
from gunicorn.arbiter import Arbiter
from gunicorn.workers.base import Worker as BaseWorker

from stackmgr import start_check

WORKER = "stackmgr.server.worker.Worker"
BOOT_SECONDS = 30.0  # in which a worker must serve
# A turn of the master takes at most 1 s.  After a longer one, workers get as long for a heartbeat.
STILL_SECONDS = 3.0

_REPLACED = ("manage_workers", "murder_workers", "reap_workers", "reload", "signal", "spawn_worker")
_REQUIRED = (
    *_REPLACED, "WORKERS", "app", "cfg", "handle_int", "handle_quit", "handle_term", "handle_usr2",
    "kill_worker", "num_workers", "pid", "setup", "worker_age",
)  # fmt: skip


class _ReloadRejected(Exception):
    """The release on disk did not pass its check, or the new workers do not serve."""


def _serves(worker: BaseWorker) -> bool:
    """Whether the worker has sent a heartbeat, by which its file gets the monotonic time."""
    try:
        return bool(worker.tmp.last_update() <= time.monotonic())
    except (OSError, ValueError):  # it has ended
        return False


def _reason(ex: Exception) -> str:
    return f"{ex.filename}: {ex.strerror}" if isinstance(ex, OSError) and ex.filename else str(ex)


class Master:
    """Replaces methods of gunicorn's arbiter *server*.  Raises RuntimeError if it has others."""

    def __init__(self, server: Arbiter) -> None:
        if missing := [name for name in _REQUIRED if not hasattr(server, name)]:
            raise RuntimeError(f"gunicorn {__version__} is not supported: no Arbiter.{', '.join(missing)}")
        if server.cfg.worker_class_str != WORKER:
            raise RuntimeError(
                f"these settings are for {WORKER}: unset worker_class, also in GUNICORN_CMD_ARGS"
            )
        self._server = server
        self._gunicorn = SimpleNamespace(**{name: getattr(server, name) for name in _REPLACED})
        self._stop_handlers: dict[int, Callable[[], None]] = {
            signal.SIGINT: server.handle_int,
            signal.SIGQUIT: server.handle_quit,
            signal.SIGTERM: server.handle_term,
        }
        self._stop: Callable[[], None] | None = None  # the handler of a signal to stop that has arrived
        self._is_reload_queued = False
        self._oldest_new: int | None = None  # the age of the first new worker, during a reload
        self._rejected = range(0)  # the ages of the new workers of a reload that was rejected
        self._notify_socket = os.environ.pop("NOTIFY_SOCKET", "")  # else gunicorn would use it before a fork
        for name in _REPLACED:
            setattr(server, name, getattr(self, name))
        server.handle_usr2 = lambda: server.log.error("SIGUSR2 is not supported: send SIGHUP to upgrade")
        self._turned_at = self._spares_until = time.monotonic()

    def signal(self, number: int, frame: FrameType | None) -> None:
        """Queue a signal, of several to reload one.  A signal to stop ends a reload."""
        if number == signal.SIGHUP:
            if self._is_reload_queued:
                return
            self._is_reload_queued = True
        self._stop = self._stop_handlers.get(number, self._stop)
        self._gunicorn.signal(number, frame)

    def murder_workers(self) -> None:
        """End workers that send no heartbeat, unless this process stood still itself until now."""
        now = time.monotonic()
        if now - self._turned_at > STILL_SECONDS:
            self._spares_until = now + STILL_SECONDS
        self._turned_at = now
        if now >= self._spares_until:
            self._gunicorn.murder_workers()

    def reload(self) -> None:
        self._is_reload_queued = False
        if self._stop is not None:
            return
        server, number = self._server, self._server.num_workers
        application = dict(vars(server.app))
        modules = {name: each for name, each in sys.modules.items() if name.partition(".")[0] == "stackmgr"}
        try:
            if (output := start_check.run_check(self._supervise)) is None:
                raise _ReloadRejected  # noqa: TRY301
            os.environ[start_check.RESULT] = output
            self._oldest_new = server.worker_age + 1
            self._gunicorn.reload()
        except StopIteration:  # by the handler of a signal to stop
            raise
        except (Exception, SystemExit) as ex:
            if os.getpid() != server.pid:  # a new worker, forked below this frame, exits
                raise
            if not isinstance(ex, _ReloadRejected | SystemExit):
                reason = _reason(ex) if isinstance(ex, OSError) else type(ex).__name__
                server.log.exception("The reload failed: %s", reason)
            server.log.error(  # noqa: TRY400 - the reasons are logged; a traceback adds nothing
                "The reload is rejected for the reasons above; the workers keep serving as before"
            )
            sys.modules.update(modules)
            vars(server.app).update(application)  # gunicorn resets more of it than its settings
            if server.cfg is not server.app.cfg:
                server.setup(server.app)
                server.num_workers = number
        finally:
            self._oldest_new = None

    def _supervise(self) -> None:
        if self._stop is not None:
            self._stop()
        self.reap_workers()
        self.murder_workers()
        self.manage_workers()

    def reap_workers(self) -> None:
        """Reap workers.  During a reload, whose waits call this, stop if a signal says so."""
        self._gunicorn.reap_workers()
        if self._stop is not None and self._oldest_new is not None:
            self._oldest_new = None
            self._stop()

    def spawn_worker(self) -> None:
        """Fork a worker; if that fails, the next `manage_workers` tries again."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self._stop_handlers)  # the inherited handlers would lose one
        try:
            self._server.WORKERS[self._gunicorn.spawn_worker()].forked_at = time.monotonic()
        except (OSError, RuntimeError) as ex:  # the latter if the folder of heartbeats is missing
            self._server.log.error("A worker could not be started: %s; trying again", _reason(ex))  # noqa: TRY400
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._stop_handlers)

    def manage_workers(self) -> None:
        """Start workers that are missing, and end those that are too many once the others serve."""
        workers, wanted = self._server.WORKERS, self._server.num_workers
        if self._oldest_new is not None:
            self._wait_for_new_workers(self._oldest_new)
        now = time.monotonic()
        for pid, worker in list(workers.items()):
            if worker.forked_at + BOOT_SECONDS < now >= self._spares_until and not _serves(worker):
                self._server.log.error("Worker %s hangs at its boot; another is started", pid)
                self._server.kill_worker(pid, signal.SIGKILL)
        if rejected := sum(worker.age in self._rejected for worker in workers.values()):
            for _ in range(wanted - len(workers) + rejected):  # those end by themselves
                self.spawn_worker()
        elif self._oldest_new is not None or len(workers) <= wanted or all(map(_serves, workers.values())):
            self._gunicorn.manage_workers()
        if self._notify_socket and any(map(_serves, workers.values())):
            os.environ["NOTIFY_SOCKET"], self._notify_socket = self._notify_socket, ""
            systemd.sd_notify("READY=1\nSTATUS=serving", self._server.log, unset_environment=True)

    def _wait_for_new_workers(self, oldest_new: int) -> None:
        """Wait until the new workers serve, or end them and raise _ReloadRejected."""
        workers, deadline = self._server.WORKERS, time.monotonic() + BOOT_SECONDS
        while True:
            new = {pid: worker for pid, worker in workers.items() if worker.age >= oldest_new}
            has_failed = len(new) < self._server.num_workers or time.monotonic() > deadline
            if has_failed or all(map(_serves, new.values())):
                break
            time.sleep(start_check.POLL_SECONDS)
            self._server.reap_workers()
        if has_failed:
            self._server.log.error("The new workers do not serve")
            self._rejected = range(oldest_new, self._server.worker_age + 1)
            for pid, worker in new.items():
                # One that does not serve yet may not handle SIGTERM.
                self._server.kill_worker(pid, signal.SIGTERM if _serves(worker) else signal.SIGKILL)
            raise _ReloadRejected
