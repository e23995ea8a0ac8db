"""What the unread responses of a worker count for."""

from types import SimpleNamespace

from stackmgr.server.memory import ResponseMemory


def test_a_response_that_has_been_reserved_and_is_queued_counts_once():
    reading = SimpleNamespace(outbox=bytearray(5), reserved=9)
    building = SimpleNamespace(outbox=bytearray(), reserved=20)
    unread = SimpleNamespace(outbox=bytearray(100), reserved=0)
    memory = ResponseMemory(SimpleNamespace(open={}))
    memory._connections.open = [reading, building, unread]
    assert memory._used() == 9 + 20 + 100
