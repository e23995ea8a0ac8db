"""A folder in memory, for data that no test keeps, and what a call leaves in memory."""

import gc
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path


def memory() -> str | None:
    folder = "/dev/shm"  # noqa: S108 - each user makes a folder of its own below it
    if not Path(folder).is_dir() or os.statvfs(folder).f_flag & (os.ST_NOEXEC | os.ST_NODEV):
        return None
    return folder if shutil.disk_usage(folder).free > 2**31 else None


def reachable(folder: str | Path) -> Path:
    path = Path(folder)
    path.chmod(0o755)
    return path


def types_in_cycles(call: Callable[[], object]) -> Counter[str]:
    """Return the types of what a second *call* leaves for a garbage collection."""
    call()
    gc.collect(1)
    gc.disable()
    try:
        call()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect(0)  # of what the call has made: a full one takes longer
        return Counter(type(each).__name__ for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.enable()
        gc.garbage.clear()
