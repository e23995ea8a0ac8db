"""When keys were last used, to the hour, at the price of no request.

A verification that finds the current hour not noted yet leaves the key's digest here; a thread of this
process writes what has gathered every half minute, and the rest when the process ends.  So a key costs at
most one write an hour, whatever the number of requests and of processes.  A use may take that half minute
to show, and one that a killed process had still to write shows by the next request of the hour, if any.
"""

import logging
import os
import threading

from stackmgr.background import repeat
from stackmgr.database import statements
from stackmgr.database.pool import Database
from stackmgr.errors import DatabaseError

INTERVAL = 30.0

_RECORD = statements.load("api_key_use_record")
_log = logging.getLogger("stackmgr")


class LastUse:
    """The uses that one process has noticed and not yet written.  Safe for threads."""

    def __init__(self, database: Database, interval: float = INTERVAL) -> None:
        self._database = database
        self._interval = interval
        self._lock = threading.Lock()
        self._noticed: set[bytes] = set()
        self._pid = 0

    def notice(self, key_digest: bytes) -> None:
        """Remember that a key is in use this hour."""
        with self._lock:
            self._noticed.add(key_digest)
            if self._pid != os.getpid():
                self._pid = os.getpid()
                repeat(self.write, self._interval, "last-use")

    def write(self) -> None:
        """Write what was noticed; what cannot be written is kept for the next time."""
        with self._lock:
            noticed, self._noticed = self._noticed, set()
        try:
            for key_digest in tuple(noticed):
                with self._database.session() as session:
                    session.row(_RECORD, {"key_digest": key_digest})
                noticed.remove(key_digest)
        except DatabaseError as ex:
            _log.warning("the last use of %d keys is not saved yet", len(noticed), exc_info=ex)
            with self._lock:
                self._noticed |= noticed
