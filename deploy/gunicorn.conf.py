"""gunicorn's settings for production: `gunicorn -c deploy/gunicorn.conf.py`.

The master checks the environment (stackmgr.env.example) before anything is served.  Settings absent
here keep gunicorn's defaults; WEB_CONCURRENCY is the number of workers.
"""

import gc
import importlib
import logging.config
import os
import resource
import signal
import socket
import sys
from pathlib import Path

from stackmgr.start_check import checked_start

# Process 1 of a container ignores signals without a handler; gunicorn sets its own later.
if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
signal.pthread_sigmask(signal.SIG_SETMASK, ())  # which is inherited: one that is blocked would never arrive
_logs_to_terminal = os.isatty(2)
if _logs_to_terminal:  # which may send this to a job in the background that writes
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)

# glibc repeats a lost DNS query after 5 seconds, which no request waits for a connection.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:3")

# A reload reads this file again in the same master, which has the modules of the old release.
_settings = checked_start()
if not _settings["problems"]:
    for _name in [name for name in sys.modules if name.partition(".")[0] == "stackmgr"]:
        del sys.modules[_name]
    importlib.invalidate_caches()
    gc.collect()  # the modules of an earlier reload, which are cycles

from stackmgr.monitoring import logs, metrics  # noqa: E402 - the modules of the release that was checked
from stackmgr.server.master import WORKER, Master  # noqa: E402

# gunicorn's messages in the service's log format; the service logs requests itself.
logconfig_dict = logs.configuration(_settings.get("log_level", "info"), _settings["log_format"])
logging.config.dictConfig(logconfig_dict)
_log = logging.getLogger("stackmgr")
for _warning in _settings["warnings"]:
    _log.warning(_warning)
for _problem in _settings["problems"]:
    _log.error(_problem)
if _settings["problems"]:
    sys.exit(1)
_log.info("stackmgr %s", _settings["version"])
_metrics_dir = _settings["metrics_dir"] and Path(_settings["metrics_dir"])

wsgi_app = "stackmgr.wsgi:application"

worker_class = WORKER
threads = _settings["concurrency"]  # greenlets, in this worker class

# Each worker opens its pool after the fork: a connection shared by two processes would return one
# client's rows to another.
preload_app = False

# Each connection needs a file descriptor.  The limit is raised as far as allowed, and the worker
# stops accepting before it is reached.
_soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
_files = 10240 if _hard == resource.RLIM_INFINITY else min(_hard, 10240)
if _soft != resource.RLIM_INFINITY and _soft < _files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (_files, _hard))
worker_connections = max(_files - 240, threads + 1)

# Longer than deploy/nginx.conf keeps an idle connection.  Otherwise nginx would occasionally send a
# request into a connection that is being closed, and its outcome would be unknown.
keepalive = 75

# Six times the longest Idempotency-Key that fits the receipt index: the service rejects longer
# ones; as in deploy/nginx.conf.  The worker limits all header fields together to 64 KiB.
limit_request_field_size = 16384

# Longer than the longest statement.
graceful_timeout = 30

# The heartbeat file is in memory: a slow disk must not make a worker appear hung.
worker_tmp_dir = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None  # noqa: S108

# gunicorn's default is 0, which would make a Unix socket accessible to every user.
umask = 0o007


def _require_admin_port_of_its_own(addresses):
    """Exit if another listener has the admin listener's port, by which a worker finds it."""
    host, _, port = (_settings["admin_bind"] or "").rpartition(":")
    try:
        own = {found[4][0] for found in socket.getaddrinfo(host.strip("[]"), port)} if port else set()
    except (OSError, UnicodeError) as ex:  # the latter for a name with two dots
        _log.error("STACKMGR_ADMIN_BIND: %s: %s", host, ex)
        sys.exit(1)
    for address in addresses:
        if isinstance(address, tuple) and str(address[1]) == port and address[0] not in {host, *own}:
            _log.error("STACKMGR_ADMIN_BIND: the listener on %s has the same port", address[0])
            sys.exit(1)


def nworkers_changed(server, new_value, old_value):
    """Add the admin listener to the addresses of --bind.

    This is the only hook that runs at start and at every reload before gunicorn compares addresses.
    If the listener were missing at a reload, gunicorn would close every socket and bind them again.
    """
    _require_admin_port_of_its_own(server.cfg.address)
    bind = server.cfg.bind
    if _settings["admin_bind"] and _settings["admin_bind"] not in bind:
        server.cfg.set("bind", [*bind, _settings["admin_bind"]])


def when_ready(server):
    """Check the listeners again: the sockets of systemd are not in `bind`."""
    addresses = [listener.sock.getsockname() for listener in server.LISTENERS]
    _require_admin_port_of_its_own(addresses)
    port = _settings["admin_port"]
    if port and not any(isinstance(address, tuple) and address[1] == port for address in addresses):
        _log.warning("STACKMGR_ADMIN_BIND: no listener has the port %d: add it to stackmgr.socket", port)


def post_fork(server, worker):
    """Count a worker's start and pass it the checked settings, which it does not read again."""
    os.environ["STACKMGR.PREPARED"] = _settings["prepared"]
    worker.queue_seconds = _settings["queue_timeout"]
    worker.admin_port = _settings["admin_port"]
    if _metrics_dir:
        metrics.of_worker(_metrics_dir)


def on_starting(server):
    """Guard the workers, and remove the metrics of an earlier run."""
    Master(server)
    if _logs_to_terminal:  # gunicorn takes the signal for one worker fewer
        server.SIGNALS = [each for each in server.SIGNALS if each != signal.SIGTTOU]
    if _metrics_dir:
        try:
            metrics.clear(_metrics_dir)
        except OSError as ex:
            _log.error("STACKMGR_METRICS_DIR: %s: %s", ex.filename, ex.strerror)
            sys.exit(1)


# gunicorn's control socket is not used.
control_socket_disable = True
