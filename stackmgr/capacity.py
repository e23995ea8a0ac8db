"""The contract between the server and the application: what the server grants the requests of a connection.

The worker class puts a `Capacity` into the environ of each request.  Under another WSGI server there is none,
and the application uses UNLIMITED.
"""

from collections.abc import Callable

CAPACITY = "stackmgr.capacity"


class Capacity:
    """What the requests of one connection may take.  Without *reserve*, nothing limits or delays them."""

    __slots__ = ("_reserve", "is_limited", "reserved", "retry_after")

    def __init__(self, reserve: "Callable[[Capacity, int], int] | None" = None) -> None:
        self._reserve = reserve
        self.is_limited = reserve is not None
        self.retry_after = 0  # seconds, for a request that waited too long: the application responds 503
        self.reserved = 0  # bytes of a response that is being built

    def wait_for_room(self, size: int) -> int:
        """Wait until a response of *size* bytes has room, and reserve it.

        Return 0, or the seconds after which to retry if there is none.
        """
        return 0 if self._reserve is None else self._reserve(self, size)


UNLIMITED = Capacity()
