"""The slugs of the log: each is listed, raised, and explained to operators."""

import ast
import re
from collections.abc import Iterator
from typing import Any

import pytest

from stackmgr import errors, paths
from stackmgr.http.requests import rule_slug
from stackmgr.http.schemas import inline_references, read_schema
from stackmgr.reasons import ReasonSlug

ROOT = paths.directory("schemas").parent
ROWS = re.findall(r"^\| (`.+?`) \| (\d{3}) \|", (ROOT / "deploy/REASONS.md").read_text("utf-8"), re.MULTILINE)
TABLE = [(slug, int(status)) for slugs, status in ROWS for slug in re.findall(r"`(\w+)`", slugs)]

NOT_RULES = {"$schema", "id", "description", "properties", "items"}


def slugs_of(schema: dict[str, Any], path: list[str]) -> Iterator[str]:
    """Yield the slug of every rule of a schema."""
    for keyword in schema.keys() - NOT_RULES:
        yield rule_slug(path, keyword, "")
    yield rule_slug(path, "type", None)
    for name, member in schema.get("properties", {}).items():
        yield from slugs_of(member, [*path, name])
    if "items" in schema:
        yield from slugs_of(schema["items"], [*path, "0"])


def of_the_schemas() -> set[str]:
    documents = [inline_references(read_schema(name)) for name in ("stack_create.json", "stack_update.json")]
    return {slug for document in documents for slug in slugs_of(document, [])}


def nodes() -> Iterator[ast.AST]:
    for path in sorted((ROOT / "stackmgr").rglob("*.py")):
        yield from ast.walk(ast.parse(path.read_bytes()))


def of_the_code() -> set[str]:
    """Return the slugs that the code names as members of the enumeration."""
    return {
        ReasonSlug[node.attr]
        for node in nodes()
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "ReasonSlug"
    }


def raised() -> set[tuple[str, int]]:
    """Return the slugs that the code gives to an error class by name, each with the status of the class."""
    return {
        (ReasonSlug[node.args[0].attr], vars(errors)[node.func.id].status)
        for node in nodes()
        if isinstance(node, ast.Call)
        and node.args
        and isinstance(node.func, ast.Name)
        and hasattr(vars(errors).get(node.func.id), "status")
        and isinstance(node.args[0], ast.Attribute)
        and getattr(node.args[0].value, "id", "") == "ReasonSlug"
    }


def test_the_page_explains_every_slug_and_no_other():
    assert {slug for slug, _ in TABLE} == set(ReasonSlug) | of_the_schemas()
    assert len(set(TABLE)) == len(TABLE)


def test_every_slug_is_in_use():
    assert of_the_code() == set(ReasonSlug)
    assert of_the_code() & of_the_schemas() == set()


def test_the_page_has_the_status_of_each_slug():
    assert raised() - set(TABLE) == set()


def test_a_slug_is_its_name_in_lowercase():
    assert [slug.name.lower() for slug in ReasonSlug] == [slug.lower() for slug in ReasonSlug]


@pytest.mark.parametrize("reason", [ReasonSlug.ROUTE, None])
def test_an_error_holds_a_plain_string(reason):
    # The log format `text` writes the repr of a field.
    assert repr(errors.NotFound(reason).reason) == repr(reason.value if reason else "")
