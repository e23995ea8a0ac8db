"""The HTTP server: the gunicorn worker class that serves the application.

A connection is in one of these states (`ClientConnection.phase`). It is parked in the epoll instance and
owned by none, or owned by its taker: the one greenlet, or the main thread, that took it out of
`HttpConnections.parked`.

state     meaning                                  owner   ended by
--------  ---------------------------------------  ------  ---------------------------------------------------
idle      nothing of a next request has been read  none    bytes; `keepalive` (READ_DEADLINE for the first
                                                           request; STOP_LINGER while the worker stops)
reading   a part of a request has been read        none    the rest; READ_DEADLINE or the end of input: 400
serving   bytes are parsed, or the application     taker   park or close by the taker
          runs
writing   the socket is full, the rest of the      none    the rest is sent; WRITE_DEADLINE without progress;
          response waits                                   `MEMORY_LIMIT_BYTES`
draining  the last response is sent and the        none    the client closes; DRAIN_SECONDS; DRAIN_LIMIT
          sending side closed

A deadline does not end an idle or reading connection whose bytes have arrived and wait for a greenlet.
"""

from enum import Enum


class Phase(Enum):
    """The states of the table above. Compare them with `is`."""

    IDLE = "idle"
    READING = "reading"
    SERVING = "serving"
    WRITING = "writing"
    DRAINING = "draining"


# For the path of a request: in Python 3.11, `Phase.IDLE` is a call.
IDLE, READING, SERVING, WRITING, DRAINING = Phase
