"""What the unread responses of a worker count for."""

import threading
from types import SimpleNamespace

from stackmgr.server.memory import LIMIT, MAX_WAITING, ResponseMemory
from tests.support.waiting import eventually


def test_a_response_that_has_been_reserved_and_is_queued_counts_once():
    reading = SimpleNamespace(outbox=SimpleNamespace(size=5), reserved=9)
    building = SimpleNamespace(outbox=SimpleNamespace(size=0), reserved=20)
    unread = SimpleNamespace(outbox=SimpleNamespace(size=100), reserved=0)
    memory = ResponseMemory(SimpleNamespace(open={}))
    memory._connections.open = [reading, building, unread]
    assert memory._used() == 9 + 20 + 100


def test_only_two_pages_wait_for_room():
    full = SimpleNamespace(outbox=SimpleNamespace(size=0), reserved=LIMIT)
    pages = [SimpleNamespace(outbox=SimpleNamespace(size=0), reserved=0) for _ in range(3)]
    memory = ResponseMemory(SimpleNamespace(open=[full, *pages], parked={}))
    found = []
    threads = [
        threading.Thread(target=lambda page=page: found.append(memory.wait_for_room(page, 1)))
        for page in pages[:MAX_WAITING]
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: memory._waiting == MAX_WAITING == 2)
    assert not memory.wait_for_room(pages[2], 1)
    full.reserved = 0
    for thread in threads:
        thread.join(60)
    assert found == [True, True]
    assert memory.wait_for_room(pages[2], 1)
