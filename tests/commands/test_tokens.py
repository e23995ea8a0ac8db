"""`stackmgr whitelist`: before a token is taken off the list, the operator is told who holds it."""

import json
from uuid import uuid4

import pytest

from stackmgr import cli, managers, paths, stacks
from stackmgr.database import migrations
from stackmgr.database.pool import Database
from stackmgr.stack_configuration import parse_create
from stackmgr.stacks import Actor
from stackmgr.verifiers import Identity
from tests.support.clusters import new_database
from tests.support.examples import configuration


@pytest.fixture
def own_url(server_url):
    """A migrated database that holds the stacks of no other test."""
    with new_database(server_url) as url:
        migrations.apply(url)
        yield url


@pytest.fixture
def held(own_url, spellings):
    """The tokens of the one stack that is saved."""
    database = Database(own_url, pool_size=1)
    database.open()
    with database.session() as session:
        manager_id = managers.bind(session, Identity("an identity", str(uuid4())))
        wanted = parse_create(configuration(), spellings)
        stack, _ = stacks.create(session, Actor(manager_id, "an identity", "a request"), "key", wanted)
    database.close()
    return [item["token_address"] for item in json.loads(stack.allocation)]


@pytest.fixture
def run(monkeypatch, own_url, capsys):
    def run(*arguments):
        monkeypatch.setenv("STACKMGR_DATABASE_URL", own_url)
        monkeypatch.setattr("sys.argv", ["stackmgr", "whitelist", *map(str, arguments)])
        cli.main()
        return capsys.readouterr().out

    return run


@pytest.fixture
def another_whitelist(tmp_path, tokens):
    """Return a function that writes a whitelist in which one token gave its place to another."""
    document = json.loads(paths.default_whitelist().read_bytes())

    def write(gone: str):
        for token in document["tokens"]:
            if token["address"].lower() == gone:
                token["address"] = "0x" + "00" * 19 + "01"
        path = tmp_path / "tokens.json"
        path.write_text(json.dumps(document))
        return path

    return write


@pytest.mark.usefixtures("held")
def test_a_whitelist_that_has_every_saved_token_is_ok(run):
    assert run() == "ok\n"


def test_a_token_that_stacks_hold_and_the_whitelist_lacks_is_named(run, held, another_whitelist):
    path = another_whitelist(held[0])
    assert run("--file", path) == f"warning: {held[0]} is not in {path}, and saved stacks hold it: 1\nok\n"


def test_a_whitelist_that_is_no_good_is_refused_with_every_problem(run, tmp_path):
    path = tmp_path / "tokens.json"
    path.write_text('{"chain_id": 1, "settlement_asset": {}, "tokens": []}')
    with pytest.raises(SystemExit) as ended:
        run("--file", path)
    assert "chain_id must be 4663" in ended.value.code
    assert "exactly 30 tokens" in ended.value.code
