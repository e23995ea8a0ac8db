"""The interface between server and application for the admission of requests.

The worker class puts an `Admission` into the environ of each request.  Under another WSGI server
there is none, and the application uses UNLIMITED.
"""

from typing import Any

ADMISSION = "stackmgr.admission"


class Admission:
    """The admission of one request."""

    __slots__ = ("queued_seconds", "remembered", "retry_after")

    def __init__(self) -> None:
        self.queued_seconds = 0.0  # that the request waited until it could start
        self.retry_after = 0  # seconds, for a request that waited too long: the application responds 503
        # Set by the application when it last accepted the key, or another key with the same hash.
        self.remembered: Any = None

    def accept(self, manager_id: str, remember: object = None) -> None:
        """Count the request as the manager's: its key has been verified."""


UNLIMITED = Admission()
