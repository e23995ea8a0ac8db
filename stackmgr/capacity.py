"""The contract between the server and the application about the capacity for requests.

The worker class puts a `Capacity` into the environ of each request.  Under another WSGI server there is none,
and the application uses UNLIMITED.
"""

CAPACITY = "stackmgr.capacity"


class Capacity:
    """What the server grants a request, and what it learns of it."""

    __slots__ = ("retry_after",)

    def __init__(self) -> None:
        self.retry_after = 0  # seconds, for a request that waited too long: the application responds 503

    def accept(self, manager_id: str) -> None:
        """Count the request as the manager's: its key has been verified."""


UNLIMITED = Capacity()
