"""The HTTP server: the gunicorn worker class that serves the application.

One thread, the main one, does all of it.  A connection is in one of the phases of the table below; each has
the events that the connection is watched for, and its deadline.  `HttpConnections.park` decides which phase
follows when a step has ended, `Worker` what is done with its events and at its deadline.
"""

import select
from dataclasses import dataclass
from math import inf

from stackmgr.limits import REQUEST_SECONDS

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
LISTEN = READ | select.EPOLLONESHOT


@dataclass(eq=False, slots=True)
class Phase:
    """A row of the table of phases."""

    name: str
    events: int  # that the connection is watched for
    seconds: float  # until the deadline, from the beginning of the phase: a trickle does not move it


# A deadline ends no connection whose bytes have arrived, and no reader that makes progress.  In the phases
# QUEUED and SERVING, the first event ends the watch: what arrives then is read after the response.
#
# fmt: off
#                 name        events  seconds                  ended by        at the deadline
IDLE = Phase(     "idle",     READ,   float(REQUEST_SECONDS))  # a byte        closed; later `keepalive` s
READING = Phase(  "reading",  READ,   float(REQUEST_SECONDS))  # the rest      400; so at the end of input
QUEUED = Phase(   "queued",   READ,   inf)                     # its turn      503, by `RequestQueue`
SERVING = Phase(  "serving",  READ,   inf)                     # the response
WRITING = Phase(  "writing",  WRITE,  30.0)                    # the last byte closed; see WRITE_PROGRESS
DRAINING = Phase( "draining", READ,   2.0)                     # the client    closed; so after DRAIN_LIMIT
CLOSED = Phase(   "closed",   0,      inf)
# fmt: on
