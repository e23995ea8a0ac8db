"""The queue of complete requests: which run at once, and which of the queued ones is next.

Start-time fair queueing: each queued request has a start tag, and the smallest is next.  The tag is
the time of its arrival, or later: each second that its group held the thread moves the tag of the
group's first request by _CHARGE seconds.  Tags are times of the clock, not of a virtual one, so a
group that sent nothing has saved nothing, and one that ran alone owes at most _LEAD_SECONDS.

A group is a manager, or all keys that are not known: a client may send another one each time.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from math import ceil
from operator import itemgetter
from random import randint, randrange
from typing import Generic, TypeVar

from stackmgr.admission import Admission

# Beyond, the last of the longest line is rejected, or any of unknown keys.  A worker serves so many
# within the default timeout of 1 s.  uWSGI: a backlog of 100, gunicorn: 2,048.
LIMIT = 512
LIMIT_BYTES = 67_108_864  # half of BUFFER_BUDGET; beyond, the largest of the line that holds most is rejected
RETRY_SPREAD_SECONDS = 4  # clients that are rejected together must not return together
_KNOWN_KEYS = 10_000  # 9 MB with the identities
# With 0, a manager waits for all that another one has sent before; lines that simply alternate
# make the longest waits longer.
_CHARGE = 2
_LEAD_SECONDS = 0.01  # a manager that was alone for an hour must not wait for others as long
_UNKNOWN = "", None  # the group of keys that are not known, and what is remembered of them

_Line = tuple[str, bool]  # a group, and whether its requests write
_Entry = TypeVar("_Entry")


class Place(Admission):
    """The place of a connection's present request among those that run."""

    def __init__(self, accept: "Callable[[Place, str, object], None]") -> None:
        super().__init__()
        self._accept = accept  # of the queue
        self.key_hash = 0  # of the last request that had one
        self.group: str | None = None  # in which the request counts while it runs
        self.is_accepted = False  # that key
        self.writes = False
        self.size = 0  # bytes that the request holds

    def accept(self, manager_id: str, remember: object = None) -> None:
        """Count the request as the manager's: its key has been verified."""
        self.is_accepted = True
        self._accept(self, manager_id, remember)


class RequestQueue(Generic[_Entry]):
    """Admits *limit* requests at once: of one manager three quarters, of unknown keys a quarter.

    Writes leave an eighth to reads: a lock on a table may block all writes.  A quarter would cost
    each write 3 %.  Reads and writes of a group each have a line.  A request that has been queued
    for *seconds* is rejected; with 0, never.
    """

    def __init__(self, limit: int, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._free = limit  # how many more requests may run at once
        self._limit, self._unknown_limit = limit - limit // 4, max(1, limit // 4)
        self._write_limit = max(1, limit - ceil(limit / 8))
        self._running: dict[str, int] = {}  # by group
        self._writing = 0  # of these, in all groups
        # By the hash of a key that was accepted lately: its manager, and what the application remembers.
        self._known: dict[int, tuple[str, object]] = {}
        self._lines: dict[_Line, deque[tuple[float, Place, _Entry]]] = {}
        self._charged_until: dict[str, float] = {}  # the earliest start tag of each group with a line
        self.length = 0  # requests in the lines
        self._bytes = 0  # that these hold

    def add(self, place: Place, key: str, entry: _Entry, now: float, *, writes: bool = False) -> list[_Entry]:
        """Add a request; return those that must be rejected for it, if there are too many or too large."""
        place.key_hash, place.writes, place.retry_after = hash(key), writes, 0
        group, place.remembered = self._known.get(place.key_hash, _UNKNOWN)
        self._lines.setdefault((group, writes), deque()).append((now, place, entry))
        self.length += 1
        self._bytes += place.size
        rejected = []
        if self.length > LIMIT:
            longest = max(self._lines, key=lambda line: len(self._lines[line]))
            number = -1 if longest[0] else randrange(len(self._lines[longest]))  # noqa: S311
            rejected.append(self._remove_rejected(longest, number))
        while self._bytes > LIMIT_BYTES:
            sizes = {line: [each[1].size for each in self._lines[line]] for line in self._lines}
            line = max(sizes, key=lambda line: sum(sizes[line]))
            rejected.append(self._remove_rejected(line, sizes[line].index(max(sizes[line]))))
        return rejected

    def has_next(self, *, known: bool = False) -> bool:
        return self._free > 0 and any(self._may_run(line) for line in self._lines if line[0] or not known)

    def take(self) -> _Entry | None:
        may_run = filter(self._may_run, self._lines) if self._free else ()
        if (line := min(may_run, key=self._start_tag, default=None)) is None:
            return None
        self._enter(self._lines[line][0][1], line[0])
        return self._remove(line, 0)

    def take_overdue(self, now: float) -> Iterator[_Entry]:
        for line, queued in list(self._lines.items()) if self._seconds else ():
            while queued and queued[0][0] <= now - self._seconds:
                yield self._remove_rejected(line, 0)

    def accept(self, place: Place, manager_id: str, remember: object = None) -> None:
        """Count the request of *place*, and later ones with its key, as the manager's."""
        is_new = place.key_hash not in self._known
        if is_new and len(self._known) == _KNOWN_KEYS:
            # Each second one goes: of more keys that take turns, the oldest is the next that comes.
            self._known = dict(islice(self._known.items(), 1, None, 2))
        self._known[place.key_hash] = manager_id, remember
        for writes in (False, True) if is_new else ():
            self._move_line(place.key_hash, (_UNKNOWN[0], writes), manager_id)
        if place.group not in (None, manager_id) and self._running.get(manager_id, 0) < self._limit:
            self.leave(place)
            self._enter(place, manager_id)

    def _move_line(self, key_hash: int, line: _Line, manager_id: str) -> None:
        queued = self._lines.get(line, ())
        if found := [each for each in queued if each[1].key_hash == key_hash]:
            self._lines[line] = deque(each for each in queued if each[1].key_hash != key_hash)
            self._end_line(line)
            found.extend(self._lines.get((manager_id, line[1]), ()))
            self._lines[manager_id, line[1]] = deque(sorted(found, key=itemgetter(0)))

    def forget(self, place: Place) -> None:
        place.is_accepted = False
        self._known.pop(place.key_hash, None)

    def charge(self, place: Place, now: float, seconds: float) -> None:
        """Charge the group of *place* for *seconds* of the thread, whether its request runs or not."""
        if self.length:
            group = self._known.get(place.key_hash, _UNKNOWN)[0] if place.group is None else place.group
            if lines := [line for line in self._lines if line[0] == group]:
                tag = min(map(self._start_tag, lines))[0] + _CHARGE * seconds
                self._charged_until[group] = min(now + _LEAD_SECONDS, tag)

    def leave(self, place: Place) -> None:
        group, place.group = place.group, None
        if group is not None:
            self._free += 1
            self._writing -= place.writes
            self._running[group] -= 1
            if not self._running[group]:
                del self._running[group]

    def _start_tag(self, line: _Line) -> tuple[float, float]:
        arrival = self._lines[line][0][0]
        return max(arrival, self._charged_until.get(line[0], 0.0)), arrival

    def _may_run(self, line: _Line) -> bool:
        group, writes = line
        limit = self._limit if group else self._unknown_limit
        return self._running.get(group, 0) < limit and not (writes and self._writing >= self._write_limit)

    def _enter(self, place: Place, group: str) -> None:
        place.group = group
        self._free -= 1
        self._writing += place.writes
        self._running[group] = self._running.get(group, 0) + 1

    def _remove_rejected(self, line: _Line, number: int) -> _Entry:
        place = self._lines[line][number][1]
        place.retry_after = max(1, ceil(self._seconds)) + randint(0, RETRY_SPREAD_SECONDS)  # noqa: S311 - no secret
        return self._remove(line, number)

    def _remove(self, line: _Line, number: int) -> _Entry:
        _, place, entry = self._lines[line][number]
        del self._lines[line][number]
        self._end_line(line)
        self.length -= 1
        self._bytes -= place.size
        return entry

    def _end_line(self, line: _Line) -> None:
        """Forget a line that is empty, and what a group without lines has been charged."""
        if not self._lines[line]:
            del self._lines[line]
            if (line[0], not line[1]) not in self._lines:
                self._charged_until.pop(line[0], None)
