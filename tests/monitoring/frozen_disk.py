"""A disk that a test can stall: a file system of its own, frozen as for a snapshot."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.programs import require

_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_SIZE = 16 * 1024 * 1024  # bytes
# A test that is killed must not leave the disk frozen: until it is thawed, no `sync` of the machine ends.
_LONGEST_FREEZE = 90  # seconds


class FrozenDisk:
    """A mounted file system, on which each write to a file blocks between `freeze` and `thaw`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._program = require(shutil.which("fsfreeze", path=_PATH), "util-linux")
        self._watchdog: subprocess.Popen[bytes] | None = None

    def freeze(self) -> None:
        """Let each write block."""
        thaw = ["sh", "-c", 'sleep "$1"; exec "$2" -u "$3"', "sh", str(_LONGEST_FREEZE)]
        self._watchdog = subprocess.Popen([*thaw, self._program, self.folder], start_new_session=True)
        subprocess.run([self._program, "-f", self.folder], check=True)

    def thaw(self) -> None:
        """Let the writes go on, if they were blocked."""
        if self._watchdog is not None:
            subprocess.run([self._program, "-u", self.folder], check=True)
            os.killpg(self._watchdog.pid, signal.SIGKILL)
            self._watchdog.wait()
            self._watchdog = None


@contextmanager
def frozen_disk(folder: Path) -> Iterator[FrozenDisk]:
    """Mount a new file system below *folder*, not frozen yet.  Without the right to mount, skip the test."""
    mount, unmount = (require(shutil.which(name, path=_PATH), "mount") for name in ("mount", "umount"))
    make = require(shutil.which("mkfs.ext4", path=_PATH), "e2fsprogs")
    image, mounted = folder / "image", folder / "disk"
    mounted.mkdir()
    image.touch()
    os.truncate(image, _SIZE)
    subprocess.run([make, "-q", image], check=True)
    if subprocess.run([mount, "-o", "loop", image, mounted], check=False, capture_output=True).returncode:
        pytest.skip("only root may mount a file system, on a machine with loop devices")
    disk = FrozenDisk(mounted)
    try:
        yield disk
    finally:
        disk.thaw()
        subprocess.run([unmount, mounted], check=True)
