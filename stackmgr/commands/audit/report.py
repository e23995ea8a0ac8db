"""The report of `stackmgr audit`: findings as they are found, the progress on a terminal, and the rate."""

import json
import sys
import time
from dataclasses import dataclass, field

from stackmgr.commands.output import print_note, printable

_PROGRESS_SECONDS = 0.5
_BAR = 30


@dataclass
class Counts:
    """What has been read, since when, and what was found."""

    estimate: int = 0
    stacks: int = 0
    revisions: int = 0
    receipts: int = 0
    findings: int = 0
    started: float = field(default_factory=time.monotonic)

    def rate(self) -> str:
        """Return the stacks per second so far."""
        return f"{self.stacks / max(time.monotonic() - self.started, 0.001):,.0f} stacks/s"


class Report:
    """Findings, one line each or one JSON document, and on a terminal the progress."""

    # The document is printed piece by piece: findings have no limit, so none is kept for json.dumps.

    def __init__(self, counts: Counts, *, as_json: bool) -> None:
        self._counts, self._as_json = counts, as_json
        self._progress = sys.stderr.isatty()
        self._next = 0.0
        if as_json:
            print('{"findings": [', end="")

    def finding(self, kind: str, manager_id: str, stack_id: str, text: str) -> None:
        """Print a finding."""
        self._clear()
        if self._as_json:
            row = {"kind": kind, "manager_id": manager_id, "stack_id": stack_id, "finding": text}
            print(f"{',' if self._counts.findings else ''}\n  {json.dumps(row)}", end="")
        else:
            print("\t".join((kind, manager_id, stack_id or "-", printable(text))))
        self._counts.findings += 1

    def progress(self) -> None:
        """Print the progress, now and then."""
        now = time.monotonic()
        if self._progress and now >= self._next:
            self._next = now + _PROGRESS_SECONDS
            counts = self._counts
            total = max(counts.estimate, counts.stacks, 1)
            done = _BAR * counts.stacks // total
            bar = "#" * done + "." * (_BAR - done)
            text = f"[{bar}] {counts.stacks:,} of about {total:,}, {counts.rate()}, {counts.findings} found"
            print(f"\r{text:100}", end="", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._progress:
            print(f"\r{'':100}\r", end="", file=sys.stderr)

    def end(self) -> None:
        """Print what was read and how fast."""
        self._clear()
        counts = self._counts
        if self._as_json:
            read = {name: getattr(counts, name) for name in ("stacks", "revisions", "receipts")}
            print(f"\n], {json.dumps(read)[1:]}")
        print_note(
            f"{counts.stacks:,} stacks, {counts.revisions:,} revisions, {counts.receipts:,} receipts read in "
            f"{time.monotonic() - counts.started:.0f} s, {counts.rate()}. Findings: {counts.findings}."
        )
