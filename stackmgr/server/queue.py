"""The queue of complete requests: which of them run at once, and which wait, for how long."""

from collections import deque
from collections.abc import Callable, Iterator
from math import ceil
from operator import itemgetter
from random import randint, randrange
from typing import Generic, TypeVar

from stackmgr.admission import Admission

LIMIT = 512  # requests that wait; beyond, the last of the longest line is rejected, or any of unverified keys
LIMIT_BYTES = 67_108_864  # that these hold; beyond, the largest of the line that holds most is rejected
RETRY_SPREAD_SECONDS = 4  # clients that are rejected together must not return together
# Accepted keys.  A new one replaces any: if more take turns, the oldest is the next that comes.
_REMEMBERED = 10_000
# Seconds by which each second that a group held the thread delays the start of its waiting time.
# With 0, a manager waits for all that another one has sent before; lines that simply alternate
# make the longest waits longer.
_CHARGE = 2
_LEAD_SECONDS = 0.01  # a manager that was alone for an hour must not wait for others as long
_UNVERIFIED = ""  # the group of all other keys together: a client may send another one each time

_Line = tuple[str, bool]  # a group, and whether its requests write
_Entry = TypeVar("_Entry")


class Place(Admission):
    """The place of a connection's present request among those that run."""

    __slots__ = ("_accept", "group", "is_accepted", "key_hash", "size", "writes")

    def __init__(self, accept: "Callable[[Place, str, object], None]") -> None:
        super().__init__()
        self._accept = accept  # of the queue
        self.key_hash = 0  # a hash: keys are not kept
        self.group: str | None = None  # in which the request counts while it runs
        self.is_accepted = False  # the key of the last request that had one
        self.writes = False
        self.size = 0  # bytes that the request holds

    def accept(self, manager_id: str, remember: object = None) -> None:
        """Count the request as the manager's: its key has been verified."""
        self.is_accepted = True
        self._accept(self, manager_id, remember)


class RequestQueue(Generic[_Entry]):
    """Admits *limit* requests at once: of one manager three quarters, of unverified keys a quarter.

    Writes leave an eighth to reads: a lock on a table may block all writes.  A quarter would cost
    each write 3 %.  Reads and writes of a group each have a line.  The request that has waited
    longest is next; its group's use of the thread shortens that time: see _CHARGE.  A request that
    has waited for *seconds* is rejected; with 0, never.
    """

    def __init__(self, limit: int, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._free = limit  # how many more requests may run at once
        self._limit, self._unverified_limit = limit - limit // 4, max(1, limit // 4)
        self._write_limit = max(1, limit - ceil(limit / 8))
        self._running: dict[str, int] = {}  # by group
        self._writing = 0  # of these, in all groups
        # By key: the manager, and what the application remembers.
        self._managers: dict[int, tuple[str, object]] = {}
        self._remembered: list[int] = []  # those keys, and some that have been forgotten
        self._lines: dict[_Line, deque[tuple[float, Place, _Entry]]] = {}
        self._counts_from: dict[str, float] = {}  # by group: its requests count from then, at the earliest
        self.length = 0  # requests in the lines
        self._bytes = 0  # that these hold

    def add(self, place: Place, key: str, entry: _Entry, now: float, *, writes: bool = False) -> list[_Entry]:
        """Add a request; return those that must be rejected for it, if too many wait or hold too much."""
        place.key_hash, place.writes, place.retry_after = hash(key), writes, 0
        group, place.remembered = self._managers.get(place.key_hash, (_UNVERIFIED, None))
        self._lines.setdefault((group, writes), deque()).append((now, place, entry))
        self.length += 1
        self._bytes += place.size
        rejected = []
        if self.length > LIMIT:
            longest = max(self._lines, key=lambda line: len(self._lines[line]))
            is_known = longest[0] != _UNVERIFIED
            number = -1 if is_known else randrange(len(self._lines[longest]))  # noqa: S311
            rejected.append(self._remove_rejected(longest, number))
        while self._bytes > LIMIT_BYTES:
            sizes = {line: [each[1].size for each in self._lines[line]] for line in self._lines}
            line = max(sizes, key=lambda line: sum(sizes[line]))
            rejected.append(self._remove_rejected(line, sizes[line].index(max(sizes[line]))))
        return rejected

    def has_next(self) -> bool:
        """Return whether there is a request that may run."""
        return self._free > 0 and any(map(self._may_run, self._lines))

    def take(self) -> _Entry | None:
        """Return the next request that may run, or None."""
        may_run = filter(self._may_run, self._lines) if self._free else ()
        if (line := min(may_run, key=self._waits_since, default=None)) is None:
            return None
        self._enter(self._lines[line][0][1], line[0])
        return self._remove(line, 0)

    def take_overdue(self, now: float) -> Iterator[_Entry]:
        """Remove and yield the requests that must be rejected because they have waited too long."""
        for line, waiting in list(self._lines.items()) if self._seconds else ():
            while waiting and waiting[0][0] <= now - self._seconds:
                yield self._remove_rejected(line, 0)

    def accept(self, place: Place, manager_id: str, remember: object = None) -> None:
        """Count the request of *place*, and later ones with its key, as the manager's."""
        if place.key_hash not in self._managers:
            self._remember(place.key_hash)
            for line in [line for line in self._lines if line[0] == _UNVERIFIED]:
                self._move_line(place.key_hash, line, manager_id)
        self._managers[place.key_hash] = manager_id, remember
        if place.group not in (None, manager_id) and self._running.get(manager_id, 0) < self._limit:
            self.leave(place)
            self._enter(place, manager_id)

    def _remember(self, key_hash: int) -> None:
        """Make room for one more key."""
        if len(self._remembered) < _REMEMBERED:
            self._remembered.append(key_hash)
        else:
            number = randrange(_REMEMBERED)  # noqa: S311 - no secret
            self._managers.pop(self._remembered[number], None)
            self._remembered[number] = key_hash

    def _move_line(self, key_hash: int, line: _Line, manager_id: str) -> None:
        """Move the requests that wait with a key to the line of its manager."""
        if found := [each for each in self._lines[line] if each[1].key_hash == key_hash]:
            others = deque(each for each in self._lines.pop(line) if each[1].key_hash != key_hash)
            if others:
                self._lines[line] = others
            self._end_line(_UNVERIFIED)
            found.extend(self._lines.get((manager_id, line[1]), ()))
            self._lines[manager_id, line[1]] = deque(sorted(found, key=itemgetter(0)))

    def forget(self, place: Place) -> None:
        """Count later requests with the key of *place* as unverified."""
        place.is_accepted = False
        self._managers.pop(place.key_hash, None)

    def leave(self, place: Place, now: float = 0.0, seconds: float = 0.0) -> None:
        """Let another request run: *place*'s has ended and held the thread for *seconds*."""
        group, place.group = place.group, None
        if group is not None:
            if seconds and self._lines and (lines := [line for line in self._lines if line[0] == group]):
                charged = min(map(self._waits_since, lines))[0] + _CHARGE * seconds
                self._counts_from[group] = min(now + _LEAD_SECONDS, charged)
            self._free += 1
            self._writing -= place.writes
            self._running[group] -= 1
            if not self._running[group]:
                del self._running[group]

    def _waits_since(self, line: _Line) -> tuple[float, float]:
        """Return since when a line's first request counts as waiting, and since when it waits."""
        arrival = self._lines[line][0][0]
        return max(arrival, self._counts_from.get(line[0], 0.0)), arrival

    def _may_run(self, line: _Line) -> bool:
        group, writes = line
        limit = self._limit if group else self._unverified_limit
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
        if not self._lines[line]:
            del self._lines[line]
            self._end_line(line[0])
        self.length -= 1
        self._bytes -= place.size
        return entry

    def _end_line(self, group: str) -> None:
        """Forget what a group has been charged, once it has no line."""
        if (group, False) not in self._lines and (group, True) not in self._lines:
            self._counts_from.pop(group, None)
