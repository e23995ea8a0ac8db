"""The slugs of the log: each is listed, raised, and explained to operators."""

import re
from collections.abc import Iterator
from typing import Any

from stackmgr import errors
from stackmgr.http.requests import rule_slug
from stackmgr.http.schemas import inline_references, read_schema
from stackmgr.reasons import ReasonSlug
from tests.support.releases import ROOT

ROWS = re.findall(r"^\| (`.+?`) \| (\d{3}) \|", (ROOT / "deploy/REASONS.md").read_text("utf-8"), re.MULTILINE)
TABLE = [(slug, int(status)) for slugs, status in ROWS for slug in re.findall(r"`(\w+)`", slugs)]
CODE = "\n".join(path.read_text() for path in ROOT.glob("stackmgr/**/*.py"))
NOT_RULES = {"$schema", "id", "description", "properties", "items"}


def slugs_of(schema: dict[str, Any], path: list[str]) -> Iterator[str]:
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


def test_the_page_explains_every_slug_in_use():
    assert {slug for slug, _ in TABLE} == set(ReasonSlug) | of_the_schemas()
    assert len(set(TABLE)) == len(TABLE)
    assert set(re.findall(r"\bReasonSlug\.(\w+)", CODE)) == set(ReasonSlug.__members__)
    assert set(ReasonSlug) & of_the_schemas() == set()
    assert [slug.lower() for slug in ReasonSlug] == [slug.name.lower() for slug in ReasonSlug]


def test_the_page_has_the_status_of_each_slug():
    raised = re.findall(r"\b(\w+)\(\s*ReasonSlug\.(\w+)", CODE)
    classes = {name: each for name, each in vars(errors).items() if hasattr(each, "status")}
    found = {(ReasonSlug[slug], classes[name].status) for name, slug in raised if name in classes}
    assert len(found) > 20
    assert found - set(TABLE) == set()
