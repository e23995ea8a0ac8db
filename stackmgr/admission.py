"""What a server and the application tell each other about the admission of requests.

The worker class puts an `Admission` into the environ of each request.  Under another WSGI server there is
none, and the application uses UNLIMITED.
"""

ADMISSION = "stackmgr.admission"


class Admission:
    """The admission of one request."""

    __slots__ = ("retry_after",)

    def __init__(self) -> None:
        self.retry_after = 0  # seconds, for a request that waited too long: the application responds 503

    def known(self) -> str | None:
        """Return the manager that is remembered for the request's key."""
        return None

    def accept(self, manager_id: str, *, remember: bool = False) -> None:
        """Count the request as the manager's: its key has been verified.

        With *remember*, the manager is known for later requests with the key, until one is rejected.
        """


UNLIMITED = Admission()
