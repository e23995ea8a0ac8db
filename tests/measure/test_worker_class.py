"""The measurements of the worker class, in a form short enough for every run."""

from tests.measure import worker_class


def test_client_is_served_while_others_hold_connections(tmp_path):
    times = worker_class.connections(tmp_path, worker_class.OURS, seconds=0.5, share=0.1)
    assert times
    assert None not in times


def test_reload_is_invisible_to_clients_with_kept_connections(tmp_path):
    # None rests for so long that its connection is closed: between a look and a send that could happen too.
    rhythms = [rhythm for rhythm in worker_class.RHYTHMS if rhythm <= 0.1]
    found = worker_class.reloads(tmp_path, worker_class.OURS, 1, rhythms=rhythms)
    assert found["requests"] > found["connections"] >= len(rhythms)
    assert (found["failed"], found["without response"]) == (0, 0)
