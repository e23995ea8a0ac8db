"""Authentication: keys, 401, and the record of a manager, whose binding never changes."""

from uuid import uuid4

import pytest
from psycopg import sql

from stackmgr.access import api_keys
from stackmgr.http.requests import parse_credential
from tests.support.client import STACKS
from tests.support.examples import MISSING, configuration
from tests.support.tables import each_case


@pytest.fixture
def end(admin):
    """Return a function that ends a client's key: it is revoked, or has expired, now."""
    statement = sql.SQL("UPDATE stackmgr.api_keys SET {} = now() WHERE key_digest = %s")

    def end(client, column="revoked_at"):
        admin.execute(statement.format(sql.Identifier(column)), [api_keys.digest(client.key)])

    return end


@pytest.mark.parametrize(
    "credentials", ["Bearer KEY", "bearer KEY", "BEARER KEY", "bEaReR KEY", "Bearer    KEY"]
)
def test_the_scheme_in_any_case_with_spaces(client, credentials):
    header = {"Authorization": credentials.replace("KEY", client.key)}
    assert client.request("GET", STACKS, headers=header).status_int == 200
    assert parse_credential(credentials.replace("KEY", "aZ09-._~+/==")) == "aZ09-._~+/=="


@each_case("credentials", {
    "nothing": (None, "", " ", "Bearer", "Bearer ", "Bearer =", "Bearer ==", "KEY"),
    "another separator": [f"Bearer{between}KEY" for between in ("", "\t", "\xa0", ": ", ":", "=")],
    "another scheme": ("Basic KEY", "Basic OnBhc3N3b3Jk", "Token KEY", "Bearers KEY", "X Bearer KEY"),
    "two": ("Bearer KEY KEY", "Bearer KEY,KEY", "Bearer KEY,Bearer KEY", "Bearer KEY, Bearer KEY"),
    "two schemes": ("Basic OnBhc3N3b3Jk,Bearer KEY",),
    "a list": ("Bearer KEY,", "Bearer ,KEY", "Bearer KEY;", "Bearer token=KEY", 'Bearer KEY, realm="x"'),
    "quoted": ('Bearer "KEY"', "Bearer 'KEY'", "Bearer <KEY>"),
    "more than the key": [f"Bearer KE{end}" for end in ("Y\xe9", "\xc3\xbf", "Y=", "Y.KEY", "Y%20")],
    "no key": ("Bearer null", "Bearer undefined", "Bearer " + "a" * 60000, "Bearer " * 1000),
})  # fmt: skip
def test_any_other_credential_takes_no_query(client, credentials):
    header = {"Authorization": credentials and credentials.replace("KEY", client.key)}
    for method, path in (("GET", STACKS), ("POST", STACKS), ("PATCH", f"{STACKS}/{MISSING}")):
        response = client.request(method, path, headers=header)
        assert (response.status_int, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert client.statements == []


@pytest.mark.parametrize("place", ["query", "X-API-Key", "Cookie", "Proxy-Authorization"])
def test_no_key_in_another_place_counts(client, place):
    path = f"{STACKS}?access_token={client.key}" if place == "query" else STACKS
    headers = {} if place == "query" else {place: f"Bearer {client.key}"}
    assert client.request("GET", path, headers={"Authorization": None} | headers).status_int == 401


def test_no_rejection_gives_a_reason(client, make_client, client_with, end):
    expired = make_client()
    end(client)
    end(expired, "expires_at")
    responses = []
    for key in (api_keys.generate(), client.key, expired.key, "mistyped", ""):
        sender = client_with(key)
        response = sender.request("GET", STACKS, headers={"X-Request-Id": "r"})
        responses.append((response.status_int, response.body, str(dict(response.headers))))
        assert sender.statements == (["api_key_verify"] if len(key) > len("mistyped") else [])
    assert responses[0][0] == 401
    assert responses == responses[:1] * 5


@pytest.mark.parametrize("operation", ["create", "update"])
def test_a_known_key_that_ends_changes_nothing(client, end, unchanged, operation):
    stack_id = client.create(configuration()).json["id"]
    end(client)
    send = {
        "create": lambda: client.create(configuration()),
        "update": lambda: client.update(stack_id, {"name": "x"}),
    }
    assert unchanged(send[operation]).status_int == 401
    assert f"stack_{operation}" in client.statements


def test_the_first_request_makes_the_record(make_client, admin):
    by_external_id = "SELECT manager_id::text, identity_id FROM stackmgr.managers WHERE external_id = %s"
    for status, send in (
        (200, lambda client: client.page()),
        (201, lambda client: client.create(configuration())),
        (400, lambda client: client.page("limit=0")),
        (400, lambda client: client.create(b"{}")),
        (404, lambda client: client.update(MISSING, {"name": "Value"})),
        (413, lambda client: client.create(b"x" * 262145)),
    ):
        client, made = make_client(), []
        for _ in range(2):
            made.append(admin.execute(by_external_id, [client.external_id]).fetchall())
            assert send(client).status_int == status
        made.append(admin.execute(by_external_id, [client.external_id]).fetchall())
        assert [identity_id for _, identity_id in made[1]] == [api_keys.identity_of(client.external_id)]
        assert made == [[], made[1], made[1]]


INSERT = "INSERT INTO stackmgr.managers (manager_id, external_id, identity_id) VALUES (%s, %s, %s)"
BOUND = """
    SELECT external_id::text, identity_id FROM stackmgr.managers
    WHERE external_id = %(external_id)s OR identity_id = %(identity_id)s ORDER BY identity_id
"""


def both_halves(client):
    return {"external_id": client.external_id, "identity_id": api_keys.identity_of(client.external_id)}


def save(admin, external_id, identity_id):
    admin.execute(INSERT, (uuid4(), external_id, identity_id))


@pytest.mark.parametrize("same", [("external_id",), ("identity_id",), ("external_id", "identity_id")])
def test_a_conflicting_binding_never_changes(client, admin, caplog, same):
    for half in same:
        other = {"external_id": str(uuid4()), "identity_id": f"elsewhere:{uuid4()}"}
        save(admin, **other | {half: both_halves(client)[half]})
    bound = admin.execute(BOUND, both_halves(client)).fetchall()
    for _ in range(2):
        for response in (
            client.page(), client.page("limit=0"), client.get(str(uuid4())), client.create(configuration()),
            client.update(str(uuid4()), {"name": "Value"}), client.request("HEAD", STACKS),
        ):  # fmt: skip
            assert response.status_int == 500
            assert not response.body or response.json["code"] == "internal_error"
            assert client.statements == ["api_key_verify", "manager_find"]
    assert admin.execute(BOUND, both_halves(client)).fetchall() == bound
    # The operator learns both sides, once.
    for identifier in (*both_halves(client).values(), *bound[0]):
        assert identifier in caplog.text
    assert f"stackmgr managers show {client.external_id}" in caplog.text
    assert caplog.text.count("binding conflict") == 1
    assert "a request failed" not in caplog.text


# What a concurrent request saves, and the status of one that waited until that was committed.
RIVALS = {
    "the same": (lambda halves: halves, 200),
    "external id": (lambda halves: halves | {"identity_id": f"elsewhere:{uuid4()}"}, 500),
    "identity id": (lambda halves: halves | {"external_id": str(uuid4())}, 500),
}


@pytest.mark.parametrize(("rival", "status"), RIVALS.values(), ids=RIVALS)
def test_a_first_request_waits_for_a_rival(make_client, admin, other, rival, status):
    for end, expected in ((other.rollback, 200), (other.commit, status)):
        client = make_client()
        halves = rival(both_halves(client))
        save(other, *halves.values())
        assert other.ended_before(client.page, watcher=admin, end=end).status_int == expected
        assert client.page().status_int == expected
        saved = halves if end == other.commit else both_halves(client)
        assert admin.execute(BOUND, both_halves(client)).fetchall() == [tuple(saved.values())]
