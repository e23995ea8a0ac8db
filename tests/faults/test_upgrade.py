"""The short form of the upgrade drill: upgrade and rollback by reloads, and an upgrade by restarts."""

from tests.faults import upgrade
from tests.support.nginx import NGINX
from tests.support.programs import require


def test_neither_an_upgrade_nor_a_rollback_fails_a_request(server_url: str) -> None:
    require(NGINX, "nginx")
    report, phases = upgrade.run(server_url, seed=1, times=0, pause=0.05)
    assert report.contradictions() == []
    assert [phase.name for phase in phases] == [
        "migration",
        "upgrade by reloads",
        "rollback by reloads",
        "upgrade by restarts",
    ]
