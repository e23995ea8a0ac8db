"""Cells of the wall clock of the service and of the database, which jumps by an hour and back.

A preloaded library adds an offset to the time of a process and its children, by the functions of the C
library.  The kernel's clock, and with it the time of files and timers, stays as it is.
"""

import json
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from tests.faults.cell import Cell, Fault
from tests.faults.stage import NoPlace, Setup, Stage
from tests.support.postgres import FaultyPostgres

_HOUR = 3600
_OFFSET = "seconds"
_VARIABLE = "FAULTS_CLOCK"
_SOURCE = f"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t *offset;

__attribute__((constructor)) static void open_offset(void) {{
    int file = open(getenv("{_VARIABLE}"), O_RDONLY);
    offset = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    close(file);
}}

int clock_gettime(clockid_t clock, struct timespec *now) {{
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset;
    return failed;
}}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}}

time_t time(time_t *now) {{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}}
"""


def _make_clock(folder: Path) -> dict[str, str]:
    """Return the variables of a process whose clock is set by a file in *folder*.  Raises NoPlace."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise NoPlace("without a C compiler no clock can be changed but the machine's own")
    library = folder / "clock.so"
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"]
    subprocess.run(command, input=_SOURCE, text=True, check=True, timeout=60)
    library.chmod(0o755)
    _set_clock(folder, 0)
    (folder / _OFFSET).chmod(0o644)
    return {"LD_PRELOAD": str(library), _VARIABLE: str(folder / _OFFSET)}


def _set_clock(folder: Path, seconds: int) -> None:
    with (folder / _OFFSET).open("r+b" if (folder / _OFFSET).exists() else "wb") as offset:
        offset.write(struct.pack("=q", seconds))


class _Postgres(FaultyPostgres):
    """A server with a clock of its own."""

    def start(self) -> None:
        before = dict(os.environ)
        os.environ |= _make_clock(self.folder.parent)
        try:
            super().start()
        finally:
            os.environ.clear()
            os.environ.update(before)


@contextmanager
def _of_the_service(setup: Setup) -> Iterator[None]:
    setup.environment |= _make_clock(setup.folder)
    yield


@contextmanager
def _of_the_database(setup: Setup) -> Iterator[None]:
    with (
        tempfile.TemporaryDirectory(prefix="stackmgr-clock-") as folder,
        _Postgres(Path(folder) / "data") as server,
    ):
        server.prepare()
        setup.use(server)
        yield


def _time_of_the_service(stage: Stage) -> datetime:
    """Return the time of the last complete line of its log."""
    return datetime.fromisoformat(json.loads(stage.service.log.splitlines()[-2])["time"])


def _time_of_the_database(stage: Stage) -> datetime:
    with psycopg.connect(stage.server.url()) as connection:
        row: Any = connection.execute(b"SELECT pg_catalog.clock_timestamp()").fetchone()
    return row[0]  # type: ignore[no-any-return]


def _jumps(seconds: int, *, of_the_database: bool) -> Fault:
    @contextmanager
    def fault(stage: Stage) -> Iterator[None]:
        folder = stage.server.folder.parent if of_the_database else stage.folder
        _set_clock(folder, seconds)
        try:
            yield
            shown = _time_of_the_database(stage) if of_the_database else _time_of_the_service(stage)
            assert abs((shown - datetime.now(UTC)).total_seconds() - seconds) < _HOUR / 2
        finally:
            _set_clock(folder, 0)

    return fault


CELLS = [
    Cell(f"clock of the {what}", "lies", _jumps(seconds, of_the_database=is_server), setup=setup)
    for what, seconds, is_server, setup in (
        ("service", _HOUR, False, _of_the_service),
        ("database", -_HOUR, True, _of_the_database),
    )
]
