"""From an SQL file to what the server is sent."""

import pytest

from stackmgr import paths
from stackmgr.database import statements


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "directory", lambda _: tmp_path)

    def load(text):
        (tmp_path / "thing_get.sql").write_text(text)
        return statements.load("thing_get")

    return load


def test_statement_has_its_files_name(load):
    statement = load('-- thing_get: what it is for; it\'s "quoted".\n\nSELECT 1 -- one\n    AS number;\n')
    assert statement.name == "thing_get"
    assert statement.text == b"SELECT /* thing_get */ 1     AS number;"
    assert statement.parameters == ()
    assert not statement.writes


@pytest.mark.parametrize(("text", "writes"), [
    ("INSERT INTO t VALUES (1);", True), ("UPDATE t SET a = 1;", True), ("DELETE FROM t;", True),
    ("WITH a AS (INSERT INTO t VALUES (1) RETURNING b) SELECT b FROM a;", True),
    ("SELECT a FROM stackmgr.create_stack(1);", True), ("SELECT a FROM stackmgr.update_stack(1);", True),
    ("SELECT a, pg_logical_emit_message(true, 'a', '') FROM receipt;", True),
    ("SELECT a FROM stackmgr.stacks AS stacks (a);", False),
    ("SELECT updated, deleted_at FROM inserts;", False), ("-- INSERT, UPDATE and DELETE\nSELECT 1;", False),
])  # fmt: skip
def test_reads_and_writes_are_told_apart(load, text, writes):
    assert load(text + "\n").writes == writes


def test_variant_replaces_statements(load):
    load("SELECT 1;\n")
    folder = paths.directory("sql") / "other"
    folder.mkdir()
    (folder / "thing_get.sql").write_text("SELECT 2;\n")
    [(name, statement)] = statements.load_variant("other").items()
    assert (name, statement.name, statement.text) == ("thing_get", "thing_get", b"SELECT /* thing_get */ 2;")
    assert statement.prepared_name != statements.load("thing_get").prepared_name
    assert statements.load_variant("plain") == {}
