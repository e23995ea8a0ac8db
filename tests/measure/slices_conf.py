"""gunicorn's settings of a checkout, with a clock at each switch of a worker's greenlets, each end of a turn.

The longest time on the processor between two of these, parsing included, and that of a turn, in nanoseconds,
are kept in the file that STACKMGR_BENCH_SLICES names, where whoever writes zeros resets them.
"""

import mmap
import os
import time
from pathlib import Path

import greenlet

_settings_file = Path("deploy/gunicorn.conf.py")
exec(compile(_settings_file.read_text(), _settings_file, "exec"))  # noqa: S102
_post_fork = post_fork  # noqa: F821 - of the settings


def post_fork(server, worker):
    from stackmgr.scheduler import Scheduler  # noqa: PLC0415 - the modules of the release that was checked

    _post_fork(server, worker)
    with Path(os.environ["STACKMGR_BENCH_SLICES"]).open("r+b") as file:
        longest = memoryview(mmap.mmap(file.fileno(), 16)).cast("q")
    run, clock, last, turned = Scheduler.run, time.thread_time_ns, 0, 0

    def trace(event, switch):
        nonlocal last
        now = clock()
        if now - last > longest[0]:  # noqa: PLR1730 - each write may hide one of another worker
            longest[0] = now - last
        last = now

    def end_turn(idle_seconds):
        nonlocal turned
        trace("end of a turn", None)
        longest[1], turned = max(longest[1], last - turned), last
        return idle_seconds()

    def traced_run(self, *calls):
        nonlocal last, turned
        last = turned = clock()
        greenlet.settrace(trace)
        if calls:  # of a turn, of its end, and others; earlier releases have none
            turn, idle_seconds, *others = calls
            calls = turn, lambda: end_turn(idle_seconds), *others
        run(self, *calls)

    Scheduler.run = traced_run
