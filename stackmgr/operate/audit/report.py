"""The report of `stackmgr audit`: findings as they are found, the progress, and the rate."""

import json
import time

from stackmgr.operate.audit.ranges import Part
from stackmgr.operate.output import print_note, printable
from stackmgr.operate.progress import Progress

_HEAD = ("KIND", "MANAGER_ID", "STACK_ID", "FINDING")


class Report:
    """Findings, one line each or one JSON document, with the progress."""

    # The document is printed piece by piece: findings have no limit, so none is kept for json.dumps.

    def __init__(self, progress: Progress, *, as_json: bool) -> None:
        self._progress, self._as_json = progress, as_json
        self._estimate = self._stacks = self._revisions = self._receipts = 0
        self._started = 0.0
        self.findings = 0

    @property
    def has_begun(self) -> bool:
        """Whether the database was there to be read."""
        return self._started > 0

    def begin(self, estimate: int) -> None:
        """Begin to report on about so many stacks."""
        self._estimate, self._started = estimate, time.monotonic()
        if self._as_json:
            print('{"findings": [', end="")

    def take(self, part: Part) -> None:
        """Print the findings of a part, and the progress."""
        if part.findings:
            self._progress.clear()
        for finding in part.findings:
            self._print(*finding)
        self._stacks += part.stacks
        self._revisions += part.revisions
        self._receipts += part.receipts
        self._progress.report(self._stacks, self._estimate, f"{self._rate()}, {self.findings} found")

    def _print(self, kind: str, manager_id: str, stack_id: str, text: str) -> None:
        if self._as_json:
            row = {"kind": kind, "manager_id": manager_id, "stack_id": stack_id, "finding": text}
            print(f"{',' if self.findings else ''}\n  {json.dumps(row)}", end="")
        else:
            if not self.findings:
                print("\t".join(_HEAD))
            print("\t".join((kind, manager_id, stack_id or "-", printable(text))))
        self.findings += 1

    def _rate(self) -> str:
        """Return the stacks per second so far."""
        return f"{self._stacks / max(time.monotonic() - self._started, 0.001):,.0f} stacks/s"

    def end(self) -> None:
        """Print what was read and how fast."""
        self._progress.clear()
        if self._as_json:
            read = {"stacks": self._stacks, "revisions": self._revisions, "receipts": self._receipts}
            print(f"\n], {json.dumps(read)[1:]}")
        print_note(
            f"{self._stacks:,} stacks, {self._revisions:,} revisions, {self._receipts:,} receipts read in "
            f"{time.monotonic() - self._started:.0f} s, {self._rate()}. Findings: {self.findings}."
        )
