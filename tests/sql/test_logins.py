"""The logins of an ordinary deployment: none is a superuser, and one of them only serves."""

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.errors import CommandError
from stackmgr.http.app import create_app
from stackmgr.operate import issued_keys, migrations, preflight
from stackmgr.operate.connection import operating
from tests.support.client import Client
from tests.support.examples import configuration
from tests.support.recorder import opened

ACCOUNT = "00000000-0000-4000-8000-000000000001"
OWNERS = b"""
SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace = to_regnamespace('stackmgr')
"""

ROLES = "CREATE ROLE stackmgr_owner; CREATE ROLE stackmgr_app; CREATE ROLE stackmgr_reader;"
DEPLOYERS = {
    "may create roles": "CREATE ROLE deployer LOGIN CREATEROLE",
    "member of the owner": f"{ROLES} CREATE ROLE deployer LOGIN IN ROLE stackmgr_owner",
    "member that inherits nothing": f"{ROLES} CREATE ROLE deployer LOGIN NOINHERIT IN ROLE stackmgr_owner",
}


def prepare(bare_database_url: str, commands: str) -> str:
    """Run *commands* as superuser, and return the connection string of a login that may create a schema."""
    with psycopg.connect(bare_database_url, autocommit=True) as superuser:
        superuser.execute(commands.encode())
        superuser.execute(f"GRANT CREATE ON DATABASE {superuser.info.dbname} TO deployer".encode())
    return make_conninfo(bare_database_url, user="deployer")


@pytest.fixture(params=DEPLOYERS.values(), ids=DEPLOYERS)
def deployer_url(request: pytest.FixtureRequest, bare_database_url: str) -> str:
    return prepare(bare_database_url, request.param)


def test_a_deployer_without_superuser_migrates_twice_and_issues_keys(deployer_url):
    assert migrations.apply(deployer_url) == migrations.available()
    assert migrations.apply(deployer_url) == []
    with opened(deployer_url, role="stackmgr_owner", pool_size=2) as database, database.session() as session:
        issued = issued_keys.create(session, ACCOUNT)
    with operating(deployer_url) as operator:
        assert issued_keys.find(operator, issued.key_id).external_id == ACCOUNT
    with psycopg.connect(deployer_url) as connection:
        assert connection.execute(OWNERS).fetchall() == [("stackmgr_owner",)]


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        (
            "CREATE ROLE deployer LOGIN",
            "stackmgr_owner does not exist and this login may not create it: run .*roles.sql",
        ),
        (f"{ROLES} CREATE ROLE deployer LOGIN", "must be .*stackmgr_owner"),
    ],
    ids=["nor are there roles", "nor a member"],
)
def test_a_deployer_that_may_not_create_roles_gets_a_clear_message(bare_database_url, commands, message):
    url = prepare(bare_database_url, commands)
    with pytest.raises(CommandError, match=message):
        migrations.apply(url)


def service_url(bare_database_url: str, role_options: str, grant: str) -> str:
    """Migrate, and return the connection string of a login that was granted the application role."""
    migrations.apply(bare_database_url)
    with psycopg.connect(bare_database_url, autocommit=True) as superuser:
        superuser.execute(
            f"CREATE ROLE service LOGIN {role_options}; GRANT stackmgr_app TO service {grant}".encode()
        )
    return make_conninfo(bare_database_url, user="service")


@pytest.mark.parametrize("inherits", ["INHERIT", "NOINHERIT"])
def test_the_service_needs_a_login_that_may_assume_its_role_and_no_more(
    bare_database_url, spellings, inherits
):
    url = service_url(bare_database_url, inherits, "")
    with operating(bare_database_url) as session:
        key = issued_keys.create(session, ACCOUNT).key
    with opened(url, pool_size=2) as database:
        app = create_app(database=database, verifier=DatabaseVerifier(), spellings=spellings)
        client = Client(app, key, ACCOUNT, [])
        created = client.create(configuration(), "key")
        assert created.status_int == 201
        assert client.create(configuration(), "key").status_int == 200
        assert client.update(created.json["id"], {"name": "New"}).status_int == 200
        assert client.get(created.json["id"]).json["name"] == "New"
        assert client.walk(limit=1) == [created.json["id"]]
    findings = preflight.examine(url)
    assert (findings.problems, findings.warnings, findings.reachable) == ([], [], True)
