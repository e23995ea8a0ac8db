"""gunicorn's settings for production; `gunicorn -c deploy/gunicorn.conf.py` needs nothing else.

What the environment decides (see the README) is checked here, in the master, before anything is served.
What is not set here has gunicorn's own default; the number of workers is WEB_CONCURRENCY's.
"""

import importlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

# A reload reads this file again, in the same master, and what the master has imported its workers inherit:
# after an upgrade they would run modules of two releases.  So nothing of the old one is kept, and what needs
# the modules that talk to the database runs in a process of its own.
for _name in [name for name in sys.modules if name.partition(".")[0] == "stackmgr"]:
    del sys.modules[_name]
importlib.invalidate_caches()
_check = subprocess.run([sys.executable, "-m", "stackmgr.startup"], stdout=subprocess.PIPE, check=False)
if _check.returncode != 0:
    sys.exit(_check.returncode)
_settings = json.loads(_check.stdout)
_metrics_dir = _settings["metrics_dir"] and Path(_settings["metrics_dir"])

from stackmgr import logs, metrics_store  # noqa: E402 - the modules of the release that was checked

wsgi_app = "stackmgr.wsgi:application"

# One thread holds at most one connection, so the pool has as many connections as the worker has threads.
worker_class = "stackmgr.server.worker.Worker"
threads = _settings["threads"]

# Each worker imports the application, and opens its pool, after the fork: a shared connection would hand
# one caller another caller's rows.
preload_app = False

# A connection costs a worker a file, and one that cannot be accepted for want of files ends the worker.
# So the limit is raised as far as it may be, and the worker stops accepting before it is reached.
_soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
_files = 10240 if _hard == resource.RLIM_INFINITY else min(_hard, 10240)
if _soft != resource.RLIM_INFINITY and _soft < _files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (_files, _hard))
worker_connections = max(_files - 240, threads + 1)

# Longer than deploy/nginx.conf keeps an idle connection: were it shorter, nginx would now and then write a
# request into one that is being closed here, and could not tell whether it was served.
keepalive = 75

# Six times the longest Idempotency-Key that the receipt index holds, so that the refusal of one too long is
# the service's to make; as much as deploy/nginx.conf takes.  The worker takes 64 KiB of all fields together.
limit_request_field_size = 16384

# Longer than the longest statement may take.
graceful_timeout = 30

# The heartbeat file belongs in memory: a slow disk must not make a worker look dead.
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: PTH112, S108

# The default is 0: a Unix socket made here would be open to everybody on the machine.
umask = 0o007

# gunicorn's own messages in the form of the service's; the service writes the line of each request.
logconfig_dict = logs.configuration(_settings["log_level"], _settings["log_format"])


def nworkers_changed(server, new_value, old_value):
    """Add the operator's listener to whatever --bind says.

    The one hook that runs at start and at every reload before gunicorn compares addresses: were the listener
    missing from those of a reload, gunicorn would close every socket and try to bind them anew.
    """
    bind = server.cfg.bind
    if _settings["admin_bind"] and _settings["admin_bind"] not in bind:
        server.cfg.set("bind", [*bind, _settings["admin_bind"]])


def on_starting(server):
    """Clear the metrics of an earlier run."""
    if _metrics_dir:
        metrics_store.clear(_metrics_dir)


def child_exit(server, worker):
    """Take a worker that has ended out of the gauges."""
    if _metrics_dir:
        metrics_store.mark_process_dead(_metrics_dir, worker.pid)


# No second way in.
control_socket_disable = True
