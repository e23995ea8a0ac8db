"""The SQL files: headers that match the statement, the rules of a body, and no other SQL is run."""

import ast
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import pq

import stackmgr
from stackmgr import paths
from stackmgr.database import statements
from stackmgr.database.connection import DatabaseConnection
from stackmgr.database.conninfo import completed_conninfo
from stackmgr.database.session import SESSION_SECONDS
from stackmgr.operate import preflight
from tests.sql.headers import CITUS_FUNCTIONS, SQL_FILES, SqlFile

PACKAGE = Path(stackmgr.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path.read_text(encoding="utf-8")
    for path in sorted(PACKAGE.rglob("*.py"))
}
# The methods that send SQL, and the position of the argument that is the SQL.
SENDING = {
    "execute": 0, "executemany": 0, "stream": 0, "exec_": 0, "exec_params": 0, "send_query": 0,
    "send_query_params": 0, "send_prepare": 1,
}  # fmt: skip
each_file = pytest.mark.parametrize("file", SQL_FILES.values(), ids=SQL_FILES)


@each_file
def test_header_is_complete_and_body_one_statement(file: SqlFile):
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", file.name)
    assert file.is_complete()
    assert file.text.isascii()
    assert file.body.count(";") == 1
    assert file.text.endswith(";\n")
    assert "*" not in file.body
    comments = [line for line in file.text.splitlines() if "--" in line]
    assert not any("%" in comment for comment in comments)
    assert statements.load(file.name).text.split()[1:4] == [b"/*", file.name.encode(), b"*/"]
    placeholders = re.findall(r"%\((\w+)\)s(?:::([a-z_.]+(?:\[\])?))?", file.body)
    assert len(placeholders) == file.body.count("%")
    assert set(placeholders) == set(file.parameters().items())
    assert list(file.parameters()) == [item.split()[0] for item in file.listed("params")]


def test_rows_of_one_time_have_an_order():
    texts = [path.read_text() for path in paths.directory("sql").rglob("*.sql")]
    orders = re.findall(r"^ *ORDER BY .*created_at.*", "".join(texts), re.MULTILINE)
    assert len(orders) > 5
    assert [each for each in orders if "_id" not in each] == []


@pytest.fixture(scope="module")
def owner(database_url: str) -> Iterator[DatabaseConnection]:
    conninfo = completed_conninfo(database_url, "stackmgr_owner", SESSION_SECONDS)
    with DatabaseConnection.connect(conninfo, autocommit=True) as connection:
        yield connection


@each_file
def test_postgresql_returns_the_headers_columns(owner, file: SqlFile):
    prepared = owner.pgconn.prepare(file.name.encode(), statements.load(file.name).text)
    assert prepared.status == pq.ExecStatus.COMMAND_OK, prepared.error_message
    described = owner.pgconn.describe_prepared(file.name.encode())
    columns = [described.fname(number).decode() for number in range(described.nfields)]
    assert columns == [column.removesuffix(" or null") for column in file.columns()]


@each_file
def test_its_callers_are_in_the_modules_that_load_it(file: SqlFile):
    loading = {name for name, text in MODULES.items() if f'statements.load("{file.name}")' in text}
    callers = [pkgutil.resolve_name(f"stackmgr.{name}") for name in file.listed("called by")]
    assert {caller.__module__ for caller in callers} == loading


def test_check_knows_each_statement_of_a_request_and_each_fact():
    of_requests = re.compile(r"(access|stacks)\.")
    found = {name for name, file in SQL_FILES.items() if of_requests.match(file.fields["called by"])}
    assert {*preflight._REQUESTS.split()} == found
    facts = {column.removesuffix(" or null") for column in SQL_FILES["server_facts"].columns()}
    others = {"slow_settings", "connections", "clock", "is_distributed"}
    assert facts - others == preflight._PROBLEMS.keys() | preflight._WARNINGS.keys()


def test_only_files_are_sent_to_the_server():
    for module, text in MODULES.items():
        tree = ast.parse(text)
        assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
        of_bytes = [node for node in assigned if isinstance(getattr(node.value, "value", None), bytes)]
        constants = {each.id for node in of_bytes for each in node.targets if isinstance(each, ast.Name)}
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            assert name != "Statement" or module == "stackmgr.database.statements", module
            if isinstance(call.func, ast.Attribute) and name in SENDING:
                sent = call.args[SENDING[name]]
                is_text = isinstance(sent, ast.Attribute) and sent.attr == "text"
                is_constant = isinstance(sent, ast.Name) and sent.id in constants
                assert is_text or is_constant, f"{module}, line {call.lineno}"


# What would be distributed by manager_id, colocated.
TENANT_TABLES = "stacks|stack_revisions|creation_receipts"
_USE = re.compile(rf"\b(FROM|JOIN|INTO|UPDATE)\s+stackmgr\.({TENANT_TABLES})\b")
_FILTER = re.compile(
    r"(?:(\w+)\.)?manager_id = (?:%\(manager_id\)s::uuid|\w+\.manager_id|\(SELECT manager_id FROM)"
)
CATALOG = (paths.directory("sql") / "catalog.tsv").read_text().splitlines()


def test_keys_and_indexes_lead_with_the_manager():
    own = re.compile(rf"relation stackmgr\.({TENANT_TABLES}): (index|constraint) \w+\t.*(INDEX|KEY) .*")
    found = [line for line in CATALOG if own.fullmatch(line)]
    others = [line for line in found if not re.search(r"(USING \w+|KEY) \(manager_id\b", line)]
    # For an operator's search of all managers.
    assert ["stack_revisions_created_at" in line for line in others] == [True]
    assert all("REFERENCES stackmgr.stacks(manager_id, " in line for line in found if "FOREIGN" in line)
    assert len(found) == 10


def assert_filtered(body: str) -> None:
    inserts = sum(verb == "INTO" for verb, _ in _USE.findall(body))
    assert len(_FILTER.findall(body)) >= len(_USE.findall(body)) - inserts


@pytest.mark.parametrize("file", [f for f in SQL_FILES.values() if _USE.search(f.body)], ids=lambda f: f.name)
def test_each_use_of_a_table_has_its_manager(file: SqlFile):
    assert file.parameters().get("manager_id") == "uuid"
    assert_filtered(file.body)


@pytest.mark.parametrize("function", CITUS_FUNCTIONS, ids=lambda text: text.split("(")[0].split(".")[1])
def test_citus_function_stays_with_its_manager(function: str):
    name = re.match(r"CREATE FUNCTION stackmgr\.(\w+)\(\s+manager_id +uuid,", function)[1]
    # The first parameter of EXECUTE is the manager, too.
    assert re.findall(r"USING ([\w.]+)", function) in ([], [f"{name}.manager_id"])
    assert_filtered(re.sub(rf"{name}\.manager_id|\$1\b", "%(manager_id)s::uuid", function))
    inserted = re.findall(r"INSERT INTO [\w.]+ \(\s*(\w+).*?VALUES \(\s*([\w.]+)", function, re.DOTALL)
    assert {column for column, _ in inserted} == {"manager_id"}
    assert {value for _, value in inserted} <= {f"{name}.manager_id", "updated.manager_id"}
