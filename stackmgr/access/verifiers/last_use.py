"""The last use of each key, to the hour, recorded outside of requests.

If the current hour is not recorded yet, verification adds the key's digest to a set.  A thread
writes the set every 30 seconds and at the end: at most once per key and hour.  A killed process
loses up to 30 seconds of uses, until the keys are used again.
"""

import logging
import os
import threading
from contextlib import suppress

from stackmgr.database import statements
from stackmgr.database.pool import Database
from stackmgr.errors import DatabaseError
from stackmgr.threads import repeat

_RECORD = statements.load("api_key_use_record")
_log = logging.getLogger("stackmgr")


class LastUse:
    """The uses that one process has not written yet.  Thread-safe."""

    def __init__(self, database: Database, interval: float = 30.0) -> None:
        self._database = database
        self._interval = interval
        self._lock = threading.Lock()
        self._noticed: set[bytes] = set()
        self._pid = 0

    def notice(self, key_digest: bytes) -> None:
        """Record that a key is used in this hour."""
        if key_digest in self._noticed and self._pid:
            return
        with self._lock:
            self._noticed.add(key_digest)
            if self._pid != os.getpid():
                with suppress(RuntimeError):  # no more threads: the next use tries again
                    repeat(self.write, self._interval, "last-use")
                    self._pid = os.getpid()

    def write(self) -> None:
        """Write the uses; those that cannot be written are kept for the next time."""
        with self._lock:
            noticed, self._noticed = self._noticed, set()
        try:
            for key_digest in tuple(noticed):
                self._database.session().row(_RECORD, {"key_digest": key_digest})
                noticed.remove(key_digest)
        except DatabaseError as ex:
            _log.warning("The last use of %d keys could not be saved yet", len(noticed), exc_info=ex)
            with self._lock:
                self._noticed |= noticed
