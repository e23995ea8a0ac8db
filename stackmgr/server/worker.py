"""The gunicorn worker: what gunicorn's master and signals see of it; `loop` serves the requests."""

import gc
import logging
import os
import signal
import sys
from time import monotonic, sleep
from types import FrameType

from gunicorn.config import Config
from gunicorn.workers.base import Worker as BaseWorker

from stackmgr.server.loop import Loop

BOOT_PAUSE = 5.0  # seconds before the master replaces a worker that could not boot

# Settings by which gunicorn's parser deviates from RFC 9112.  This worker's parser never does.
LENIENT = (
    "permit_obsolete_folding", "strip_header_spaces", "permit_unconventional_http_method",
    "permit_unconventional_http_version", "casefold_http_method",
)  # fmt: skip
UNUSED = ("accesslog", "statsd_host", "pre_request", "post_request")


class Worker(BaseWorker):  # type: ignore[misc]  # gunicorn is untyped
    """The `worker_class`: strict HTTP/1, and the settings of gthread except those it rejects."""

    alive: bool
    queue_seconds = 0.0  # that a request may wait in the queue before it is rejected; 0: without limit
    must_exit = False  # at once, even if a request swallows the exception of a signal's handler
    admin_port = 0  # of the operator's listener, which alone has it

    @classmethod
    def check_config(cls, cfg: Config, log: logging.Logger) -> None:
        """Reject settings that this worker does not support. Raises RuntimeError."""
        if cfg.is_ssl:
            raise RuntimeError("this worker does not speak TLS: unset keyfile and certfile, use a proxy")
        if cfg.protocol != "http" or cfg.proxy_protocol != "off":
            raise RuntimeError("this worker speaks plain HTTP/1 only: unset protocol and proxy_protocol")
        if any(cfg.settings[name].get() for name in LENIENT) or cfg.header_map != "drop":
            raise RuntimeError(f"this worker is strict: unset {', '.join(LENIENT)} and header_map")
        if cfg.preload_app:
            raise RuntimeError("this worker opens connections that cannot be shared: unset preload_app")
        if (cfg.uid, cfg.gid) != (os.geteuid(), os.getegid()):
            raise RuntimeError("what was checked as one user may fail as another: unset user and group")
        if unused := [name for name in UNUSED if cfg.settings[name].get() != cfg.settings[name].default]:
            raise RuntimeError(f"this worker has no access log and no such hooks: unset {', '.join(unused)}")

    def init_process(self) -> None:
        """Prepare what `run` needs; the base class then loads the application and calls `run`."""
        try:
            self.loop = Loop(self)
            super().init_process()
        except Exception:
            if self.booted:
                raise
            # gunicorn's exit statuses for this end the master, and the workers that serve.
            self.log.exception("This worker cannot boot; in %g s another is started", BOOT_PAUSE)
            end = monotonic() + BOOT_PAUSE
            while self.alive and monotonic() < end:
                sleep(0.1)  # and heed a signal
            sys.exit(1)

    def init_signals(self) -> None:
        """Ignore a signal for the master: a closed terminal sends it to all processes."""
        super().init_signals()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # `Master.spawn_worker` has blocked some

    def run(self) -> None:
        """Serve until a signal to stop."""
        # A full collection of all that has been loaded would stop the requests for 20 to 50 ms, one with
        # 8,000 clients for 27 ms.  The collections of young objects go on; for others see `Loop._look`.
        gc.freeze()
        gc.set_threshold(*gc.get_threshold()[:2], 2**31 - 1)
        self.loop.scheduler.run(self.loop.turn, self.loop.idle_seconds)

    def handle_quit(self, sig: int, frame: FrameType | None) -> None:
        """End at once."""
        self.must_exit = True
        super().handle_quit(sig, frame)

    def handle_abort(self, sig: int, frame: FrameType | None) -> None:
        """End at once: the worker has sent no heartbeat."""
        self.must_exit = True
        super().handle_abort(sig, frame)

    def count_request(self) -> None:
        """Retire after `max_requests`."""
        self.nr += 1
        if self.nr >= self.max_requests and self.alive:
            self.log.info("Autorestarting worker after current request.")
            self.alive = False
