"""The documents for people, held against what they speak of: a name that is gone is found here."""

import argparse
import ast
import re
import tomllib
from functools import cache

import pytest

import stackmgr
from stackmgr import cli, paths
from stackmgr.settings import OPTIONS
from tests.support.client import STATUS
from tests.support.openapi import BUNDLE

ROOT = paths.directory("schemas").parent
TESTS = ROOT / "tests"
DOCUMENTS = [
    "README.md",
    "CHANGELOG.md",
    ".github/CONTRIBUTING.md",
    "stackmgr/DECISIONS.md",
    "stackmgr/README.md",
    "stackmgr/access/verifiers/README.md",
    "tests/README.md",
    "tests/RULES.md",
    "tests/measure/README.md",
    "deploy/locks/README.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("deploy/*.md")),
]
each_document = pytest.mark.parametrize("document", DOCUMENTS)

VARIABLE = re.compile(r"STACKMGR(?:_[A-Z]+)+")
PATH = re.compile(r"(?:\.ci|deploy|schemas|sql|stackmgr|tests)/[\w./-]*")
REFERENCE = re.compile(r"([\w/]+\.py)::(test_\w+)")


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def code_in(document: str) -> list[str]:
    """Return what the document shows as code: spans in backticks, indented lines, fenced blocks."""
    text = text_of(document)
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    spans = re.findall(r"(?<!`)`([^`]+)`(?!`)", text)
    return [*re.findall(r"^ {4}(.+)$", text, re.MULTILINE), *"".join(fenced).splitlines(), *spans]


def syntax_trees(*patterns: str) -> list[ast.Module]:
    return [ast.parse(path.read_bytes()) for pattern in patterns for path in sorted(ROOT.glob(pattern))]


@cache
def variables_in(*patterns: str) -> set[str]:
    """Return the variables that the code names or that are settings, with the `_FILE` of each secret."""
    found = {option.variable for option in OPTIONS.values()}
    for node in (node for tree in syntax_trees(*patterns) for node in ast.walk(tree)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and VARIABLE.fullmatch(node.value):
            found.add(node.value)
    return found | {f"{option.variable}_FILE" for option in OPTIONS.values() if option.is_secret}


THE_CODES_OWN = ("stackmgr/**/*.py", "deploy/*.py")


def subcommands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    [action] = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)] or [None]
    return {} if action is None else dict(action.choices)


def command_lines(document: str) -> list[list[str]]:
    """Return the words after `stackmgr` of each command line shown; a group may stand without that word."""
    groups = [name for name, parser in subcommands_of(cli.make_parser()).items() if subcommands_of(parser)]
    shown = [
        re.search(rf"(?:^|[ /])(?<!from )stackmgr +(?=[a-z])(.+)|^((?:{'|'.join(groups)}) [a-z].*)", code)
        for code in code_in(document)
    ]
    return [(match[1] or match[2]).partition("  ")[0].split() for match in shown if match]


def rows_of(document: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text_of(document).splitlines()
        if line.startswith("|")
    ]


def test_every_test_that_the_rules_name_exists():
    referred = REFERENCE.findall(text_of("tests/RULES.md"))
    assert referred
    for path in {path for path, _ in referred}:
        tree = ast.parse((TESTS / path).read_bytes())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert {name for where, name in referred if where == path} <= functions, path


def test_every_folder_of_the_package_has_a_folder_of_tests():
    rooms = {path.parent.name for path in ROOT.glob("stackmgr/*/__init__.py")} - {"dev"}  # deploy/test_dev.py
    folders = {"http": "contract"}
    assert [room for room in rooms if not [*(TESTS / folders.get(room, room)).glob("test_*.py")]] == []


def test_every_rule_has_one_to_three_tests():
    rules = [row for row in rows_of("tests/RULES.md") if re.match(r"[1-9]", row[0])]
    assert {row[0].partition(".")[0] for row in rules} == set("12345789")  # section 6 has no rule
    for _, rule, tests in rules:
        named = tests.split(", ")
        assert len(named) <= 3, rule
        assert all(REFERENCE.fullmatch(test) for test in named), rule


@each_document
def test_every_path_a_document_names_exists(document):
    named = {path for code in code_in(document) for path in code.split() if PATH.fullmatch(path)}
    modules = {m for code in code_in(document) for m in re.findall(r"-m (tests(?:\.\w+)+)", code)}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
    folders = [ROOT / module.replace(".", "/") for module in modules]
    assert all(folder.with_suffix(".py").exists() or (folder / "__main__.py").exists() for folder in folders)


def test_every_module_the_map_of_the_code_names_exists():
    named = re.findall(r"`((?:[\w]+/)*\w+\.py|(?:\w+/)+)`", text_of("stackmgr/README.md"))
    assert len(named) > 30
    package = ROOT / "stackmgr"
    assert [name for name in named if not (ROOT / name).exists() and not [*package.rglob(name)]] == []


def test_the_map_of_the_code_names_every_module():
    text = text_of("stackmgr/README.md")
    package = ROOT / "stackmgr"
    modules = {path.relative_to(package) for path in package.rglob("*.py") if path.name != "__init__.py"}
    assert [
        module.as_posix() for module in sorted(modules) if not re.search(rf"`(?:\w+/)*{module.name}`", text)
    ] == []


def test_the_drawing_of_the_layers_is_the_import_contract():
    project = tomllib.loads(text_of("pyproject.toml"))
    contract = project["tool"]["importlinter"]["contracts"][0]["layers"]
    drawn = re.findall(r'\["([^"]+)"\]', text_of("stackmgr/README.md"))
    assert len(drawn) == len(contract)
    for box, row in zip(drawn, contract, strict=True):
        assert set(box.replace("/", "").split(" · ")) <= set(re.split(" [:|] ", row))


@each_document
def test_every_link_into_the_project_leads_somewhere(document):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text_of(document))
    folder = (ROOT / document).parent
    assert [link for link in links if "://" not in link and not (folder / link).exists()] == []


@each_document
def test_every_command_a_document_shows_exists_with_its_options(document):
    for words in command_lines(document):
        parser, rest = cli.make_parser(), list(words)
        while choices := subcommands_of(parser):
            assert rest, words
            assert rest[0] in choices, words
            parser = choices[rest.pop(0)]
        assert {word for word in rest if word.startswith("--")} <= parser._option_string_actions.keys(), words


def test_the_pages_show_every_command():
    commands = {
        (name, *second)
        for name, parser in subcommands_of(cli.make_parser()).items()
        for second in ([(nested,) for nested in subcommands_of(parser)] or [()])
    }
    pages = ("README.md", "deploy/RUNBOOK.md", "deploy/COMMANDS.md")
    shown = [line for page in pages for line in command_lines(page)]
    assert [
        words for words in commands if not any(tuple(line[: len(words)]) == words for line in shown)
    ] == []


@each_document
def test_every_variable_a_document_names_is_read(document):
    patterns = (*THE_CODES_OWN, "tests/**/*.py") if document.startswith("tests/") else THE_CODES_OWN
    assert set(VARIABLE.findall(text_of(document))) - variables_in(*patterns) == set()


def test_every_variable_that_is_read_is_named_for_operators():
    examples = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("deploy/*.env.example"))
    assert variables_in(*THE_CODES_OWN) - set(VARIABLE.findall(examples)) == set()


def test_every_variable_of_the_tests_is_named_for_testers():
    of_the_tests = {
        name
        for name in variables_in("tests/**/*.py")
        if name.startswith(("STACKMGR_TEST_", "STACKMGR_FUZZ_", "STACKMGR_PROPERTY_", "STACKMGR_OPENAPI_"))
    }
    assert of_the_tests
    assert of_the_tests - set(VARIABLE.findall(text_of("tests/README.md"))) == set()


def test_the_readme_is_short():
    assert len(text_of("README.md").splitlines()) <= 70


def test_the_error_table_is_that_of_the_code():
    rows = [re.fullmatch(r"([45]..) `(\w+)`", row[0]) for row in rows_of("schemas/guide.md")]
    assert sorted((int(row[1]), row[2]) for row in rows if row) == sorted(
        [*((status, code) for code, status in STATUS.items()), (405, "invalid_request")]
    )


def test_the_interface_and_the_package_have_the_versions_that_are_announced():
    assert BUNDLE["info"]["version"] == "1.0.0"
    [newest, *_] = re.findall(r"^## (\S+)", text_of("CHANGELOG.md"), re.MULTILINE)
    assert newest == stackmgr.__version__
