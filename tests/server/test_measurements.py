"""The two measurements that are commands, in a form short enough for every run."""

from tests.server import open_connections, reloads


def test_client_is_served_while_others_hold_connections(tmp_path):
    outcome = open_connections.measured(tmp_path, open_connections.OURS, seconds=0.5, share=0.1)
    assert outcome.times
    assert outcome.without_response == 0


def test_reload_is_invisible_to_clients_with_kept_connections(tmp_path):
    # None rests for so long that its connection is closed: between a look and a send that could happen too.
    rhythms = [rhythm for rhythm in reloads.RHYTHMS if rhythm <= 0.1]
    found = reloads.measured(tmp_path, reloads.OURS, reloads=1, rhythms=rhythms)
    assert found["requests"] > found["connections"] >= len(rhythms)
    assert (found["failed"], found["without_response"]) == (0, 0)
