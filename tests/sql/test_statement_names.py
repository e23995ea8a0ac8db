"""What a DBA sees of a statement on the server names the file it comes from."""

import time
from pathlib import Path

import psycopg
import pytest

from stackmgr.database import statements
from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.conninfo import completed_conninfo
from stackmgr.operate import migrations
from tests.sql.headers import SQL_FILES
from tests.support.clusters import cluster, new_database

# Debian's, which has the extension; the embedded server has none.
DEBIAN = Path("/usr/lib/postgresql/15/bin")
LIBRARY = Path("/usr/lib/postgresql/15/lib/pg_stat_statements.so")
SEEN = b"SELECT query FROM pg_stat_statements WHERE query LIKE '%/* stack_get */%' AND calls = 3"


@pytest.mark.parametrize("name", SQL_FILES)
def test_a_statement_names_its_file_behind_its_first_word(name):
    text = statements.load(name).text
    assert text.count(b"/*") == 1
    assert text.split()[1:4] == [b"/*", name.encode(), b"*/"]


def execute_stack_get(connection: DatabaseConnection) -> None:
    statement = statements.load("stack_get")
    connection.run(statement, dict.fromkeys(statement.parameters), time.monotonic() + 5)


def test_pg_stat_activity_shows_the_name_of_a_prepared_statement(database_url, admin):
    with DatabaseConnection.connect(
        completed_conninfo(database_url, "stackmgr_app", 5.0), autocommit=True
    ) as connection:
        execute_stack_get(connection)
        query = b"SELECT query FROM pg_stat_activity WHERE pid = %s"
        [shown] = admin.execute(query, [connection.info.backend_pid]).fetchone()
    assert shown.startswith("SELECT /* stack_get */")


@pytest.mark.skipif(not LIBRARY.exists(), reason="needs Debian's postgresql-15")
def test_pg_stat_statements_shows_the_name_of_a_prepared_statement():
    with (
        cluster(DEBIAN, "shared_preload_libraries=pg_stat_statements") as server_url,
        new_database(server_url) as url,
    ):
        migrations.apply(url)
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(b"CREATE EXTENSION pg_stat_statements")
            with DatabaseConnection.connect(
                completed_conninfo(url, "stackmgr_app", 5.0), autocommit=True
            ) as connection:
                for _ in range(3):
                    execute_stack_get(connection)
            assert len(admin.execute(SEEN).fetchall()) == 1
