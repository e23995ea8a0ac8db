"""A program on a terminal, as a person uses it: prompts are awaited, lines are typed."""

import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_SECONDS = 30


class Terminal:
    """The person's side of the terminal.  `output` is what is not read yet."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.output = ""

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def read_until(self, text: str) -> str:
        """Return the output before *text*, and drop both."""
        end = time.monotonic() + _SECONDS
        while text not in self.output:
            ready, _, _ = select.select([self._descriptor], [], [], max(end - time.monotonic(), 0))
            assert ready, f"no {text!r} in {self.output!r}"
            self.output += os.read(self._descriptor, 4096).decode(errors="replace")
        before, _, self.output = self.output.partition(text)
        return before


@contextmanager
def on_terminal(command: Sequence[str], env: dict[str, str], folder: os.PathLike[str]) -> Iterator[Terminal]:
    """Run *command* on a terminal, in *folder*, and end it with the context."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=folder, start_new_session=True
        )
        try:
            yield Terminal(ours)
        finally:
            process.kill()
            process.wait()
    finally:
        os.close(theirs)
        os.close(ours)
