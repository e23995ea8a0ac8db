"""The invariants of reads that share a round trip, as the docstring of `SharedReads` states them."""

from stackmgr import scheduler
from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.shared_reads import SharedReads, _Request
from stackmgr.errors import DatabaseError
from tests.simulation.world import World

_MAX_REQUESTS = 4


class WatchedReads(SharedReads):
    """Checks each batch when it is sent, and when it has ended."""

    world: World

    def _run(self, batch: list[_Request], connection: DatabaseConnection, deadline: float) -> None:
        sent = list(batch)
        if self._open is batch:
            self.world.fail("a batch is complete before it is sent", "requests may still join")
        if len(sent) > _MAX_REQUESTS:
            self.world.fail("a batch has at most four requests", f"{len(sent)}")
        if any(read.statement.writes for request in sent for read in request.reads):
            self.world.fail("a batch only reads", repr([request.reads for request in sent]))
        self.world.note("batch", len(sent))
        try:
            super()._run(batch, connection, deadline)
        finally:
            if batch != sent:
                self.world.fail("a batch is complete before it is sent", "a request has joined since")
            has_rows = [request.rows is not None for request in sent]
            if has_rows != sorted(has_rows, reverse=True):
                self.world.fail("no request gets rows that were sent after a failure", repr(sent))

    def _join(self, batch: list[_Request], request: _Request, deadline: float) -> None:
        if not scheduler.has_scheduler():
            self.world.fail("other threads have batches of their own", repr(batch))
        super()._join(batch, request, deadline)

    def _lead(self, batch: list[_Request], deadline: float) -> None:
        try:
            super()._lead(batch, deadline)
        except DatabaseError as ex:
            if ex.sqlstate is not None:
                self.world.fail("a statement that fails is the outcome of no batch", ex.sqlstate)
            raise
        finally:
            if self._open is batch or not all(request.has_ended._is_set for request in batch[1:]):
                self.world.fail("a batch ends with its leader", repr(batch))
