"""The queue of complete requests: which of them run at once, and which wait, for how long."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from math import ceil
from operator import itemgetter
from random import randint
from typing import Any, Generic, TypeVar

from stackmgr.admission import Admission

LIMIT = 512  # requests that wait; beyond, one of the longest line is rejected
RETRY_SPREAD_SECONDS = 4  # clients that are rejected together must not return together
_REMEMBERED = 10_000  # keys that have been accepted
# How many seconds later the first request of a line counts as waiting, for each that another one of its group
# held the thread.  With 0, a manager waits for all that another one has sent before; lines that simply
# alternate make the longest waits longer.
_CHARGE = 2
_LEAD_SECONDS = 0.01  # a manager that was alone for an hour must not wait for others as long
_UNVERIFIED = ""  # the group of all other keys together: a client may send another one each time

_Entry = TypeVar("_Entry")


class Place(Admission):
    """The place of a connection's present request among those that run."""

    __slots__ = ("_queue", "group", "key_hash")

    def __init__(self, queue: "RequestQueue[Any]") -> None:
        super().__init__()
        self._queue = queue
        self.key_hash = 0  # a hash: keys are not kept
        self.group: str | None = None  # in which the request counts while it runs

    def accept(self, manager_id: str, remember: object = None) -> None:
        """Count the request as the manager's: its key has been verified."""
        self._queue.accept(self, manager_id, remember)


class RequestQueue(Generic[_Entry]):
    """Admits *limit* requests at a time: of one manager three quarters, of unverified keys a quarter.

    Each group has a line of its own.  The request that has waited longest is next, but one counts as waiting
    later, the longer others of its group have held the thread meanwhile: see _CHARGE.  A request that has
    waited for *seconds* is rejected; with 0, it may wait without limit.
    """

    def __init__(self, limit: int, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._free = limit  # how many more requests may run at once
        self._limit, self._unverified_limit = limit - limit // 4, max(1, limit // 4)
        self._running: dict[str, int] = {}  # by group
        # By key, the last accepted at the end: the manager, and what the application remembers.
        self._managers: OrderedDict[int, tuple[str, object]] = OrderedDict()
        self._lines: dict[str, deque[tuple[float, Place, _Entry]]] = {}  # by group
        self._counts_from: dict[str, float] = {}  # by group: its requests count from then, at the earliest
        self.waiting = 0  # requests in the lines

    def add(self, place: Place, credential: str, entry: _Entry, now: float) -> _Entry | None:
        """Add a request; return the one that must be rejected for it, if too many wait."""
        place.key_hash = hash(credential)
        group, place.remembered = self._managers.get(place.key_hash, (_UNVERIFIED, None))
        self._lines.setdefault(group, deque()).append((now, place, entry))
        self.waiting += 1
        if self.waiting <= LIMIT:
            return None
        longest = max(self._lines, key=lambda group: len(self._lines[group]))
        return self._reject(longest, -1)

    def has_next(self) -> bool:
        """Return whether there is a request that may run."""
        return self._free > 0 and any(map(self._may_run, self._lines))

    def take(self) -> _Entry | None:
        """Return the next request that may run, or None."""
        waiting = filter(self._may_run, self._lines) if self._free else ()
        group = min(waiting, key=self._waits_since, default=None)
        if group is None:
            return None
        self._enter(self._lines[group][0][1], group)
        return self._remove(group, 0)

    def take_overdue(self, now: float) -> Iterator[_Entry]:
        """Remove and yield the requests that must be rejected because they have waited too long."""
        for group, line in list(self._lines.items()) if self._seconds else ():
            while line and line[0][0] <= now - self._seconds:
                yield self._reject(group, 0)

    def accept(self, place: Place, manager_id: str, remember: object = None) -> None:
        """Count the request of *place*, and later ones with its key, as the manager's."""
        is_new = self._managers.get(place.key_hash, ("",))[0] != manager_id
        self._managers[place.key_hash] = manager_id, remember
        self._managers.move_to_end(place.key_hash)
        if is_new and _UNVERIFIED in self._lines:
            self._move_line(place.key_hash, manager_id)
        if len(self._managers) > _REMEMBERED:
            self._managers.popitem(last=False)
        if place.group not in (None, manager_id) and self._running.get(manager_id, 0) < self._limit:
            self.leave(place)
            self._enter(place, manager_id)

    def _move_line(self, key_hash: int, manager_id: str) -> None:
        """Move the requests that wait with a key to the line of its manager."""
        line = self._lines[_UNVERIFIED]
        found = [waiting for waiting in line if waiting[1].key_hash == key_hash]
        if not found:
            return
        self._lines[_UNVERIFIED] = deque(waiting for waiting in line if waiting[1].key_hash != key_hash)
        if not self._lines[_UNVERIFIED]:
            self._end_line(_UNVERIFIED)
        found.extend(self._lines.get(manager_id, ()))
        self._lines[manager_id] = deque(sorted(found, key=itemgetter(0)))

    def forget(self, place: Place) -> None:
        """Count later requests with the key of *place* as unverified."""
        self._managers.pop(place.key_hash, None)

    def leave(self, place: Place, now: float = 0.0, seconds: float = 0.0) -> None:
        """Let another request run: that of *place* has ended, and has held the thread for *seconds*."""
        group, place.group = place.group, None
        place.retry_after = 0
        if group is not None:
            if seconds and group in self._lines:
                charged = self._waits_since(group) + _CHARGE * seconds
                self._counts_from[group] = min(now + _LEAD_SECONDS, charged)
            self._free += 1
            self._running[group] -= 1
            if not self._running[group]:
                del self._running[group]

    def _waits_since(self, group: str) -> float:
        """Return since when the first request of a line counts as waiting."""
        return max(self._lines[group][0][0], self._counts_from.get(group, 0.0))

    def _may_run(self, group: str) -> bool:
        limit = self._limit if group else self._unverified_limit
        return self._free > 0 and self._running.get(group, 0) < limit

    def _enter(self, place: Place, group: str) -> None:
        place.group = group
        self._free -= 1
        self._running[group] = self._running.get(group, 0) + 1

    def _reject(self, group: str, number: int) -> _Entry:
        place = self._lines[group][number][1]
        place.retry_after = max(1, ceil(self._seconds)) + randint(0, RETRY_SPREAD_SECONDS)  # noqa: S311 - no secret
        return self._remove(group, number)

    def _remove(self, group: str, number: int) -> _Entry:
        line = self._lines[group]
        _, _, entry = line[number]
        del line[number]
        if not line:
            self._end_line(group)
        self.waiting -= 1
        return entry

    def _end_line(self, group: str) -> None:
        del self._lines[group]
        self._counts_from.pop(group, None)
