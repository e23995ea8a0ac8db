"""The documents for people, held against what they speak of: a name that is gone is found here."""

import argparse
import re
import shlex
import subprocess
from uuid import uuid4

import pytest
import yaml

import stackmgr
from stackmgr import cli, paths
from stackmgr.settings import OPTIONS
from tests.support.command_line import subcommands
from tests.support.openapi import BUNDLE
from tests.support.releases import ROOT

DOCUMENTS = [
    "README.md", "CHANGELOG.md", ".github/CONTRIBUTING.md", "stackmgr/DECISIONS.md", "sql/README.md",
    "stackmgr/README.md", "stackmgr/access/verifiers/README.md", "tests/README.md", "tests/RULES.md",
    "tests/measure/README.md", "deploy/locks/README.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("deploy/*.md")),
]  # fmt: skip
each_document = pytest.mark.parametrize("document", DOCUMENTS)
MANIFESTS = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("deploy/*.y*ml")]
EXAMPLE = ROOT / "deploy" / "stackmgr.env.example"
VARIABLE = re.compile(r"STACKMGR(?:_[A-Z]+)+")
PATH = re.compile(r"(?:\.ci|deploy|schemas|sql|stackmgr|tests)/[\w./-]*")
OF_OPTIONS = {option.variable for option in OPTIONS.values()}
OF_OPTIONS |= {f"{option.variable}_FILE" for option in OPTIONS.values() if option.is_secret}


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def code_in(document: str) -> list[str]:
    text = text_of(document)
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    spans = re.findall(r"(?<!`)`([^`]+)`(?!`)", text)
    return [*re.findall(r"^ {4}(.+)$", text, re.MULTILINE), *"".join(fenced).splitlines(), *spans]


def variables_in(*patterns: str) -> set[str]:
    code = "\n".join(path.read_text() for pattern in patterns for path in ROOT.glob(pattern))
    return set(re.findall(rf'"({VARIABLE.pattern})"', code)) | OF_OPTIONS


def command_lines(document: str) -> list[list[str]]:
    """Return the words after `stackmgr` of each command line shown; a group may stand without that word."""
    groups = [name for name, parser in subcommands(cli.make_parser()).items() if subcommands(parser)]
    shown = [
        re.search(rf"(?:^|[ /])(?<!from )stackmgr +(?=[a-z])(.+)|^((?:{'|'.join(groups)}) [a-z].*)", code)
        for code in code_in(document)
    ]
    return [(match[1] or match[2]).partition("  ")[0].split() for match in shown if match]


def parser_of(words: list[str]) -> argparse.ArgumentParser:
    parser, rest = cli.make_parser(), list(words)
    while choices := subcommands(parser):
        assert rest, words
        assert rest[0] in choices, words
        parser = choices[rest.pop(0)]
    return parser


def test_each_rule_has_one_or_two_tests():
    sections = re.findall(r"(?ms)^## ([\d.]+)\n\n(.*?)(?=^#|\Z)", text_of("tests/RULES.md"))
    assert {number[0] for number, _ in sections} == set("12345789")  # section 6 has no rule
    for rule in (rule for _, text in sections for rule in re.split(r"^- ", text, flags=re.MULTILINE)[1:]):
        named = re.findall(r"^  `([\w/]+\.py)::(test_\w+)`$", rule, re.MULTILINE)
        assert 1 <= len(named) <= 2, rule
        for module, test in named:
            assert re.search(rf"^def {test}\(", text_of(f"tests/{module}"), re.MULTILINE), test


@each_document
def test_paths_and_links_lead_somewhere(document):
    named = {path for code in code_in(document) for path in code.split() if PATH.fullmatch(path)}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text_of(document))
    folder = (ROOT / document).parent
    assert [link for link in links if "://" not in link and not (folder / link).exists()] == []
    modules = {m for code in code_in(document) for m in re.findall(r"-m (tests(?:\.\w+)+)", code)}
    places = [ROOT / module.replace(".", "/") for module in modules]
    assert all(place.with_suffix(".py").exists() or (place / "__main__.py").exists() for place in places)


def test_the_map_names_every_module():
    named = set(re.findall(r"`(?:\w+/)*(\w+\.py)`", text_of("stackmgr/README.md")))
    modules = {path.name for path in ROOT.glob("stackmgr/**/*.py")} - {"__init__.py"}
    assert modules - named == set()
    assert named - modules - {path.name for path in ROOT.glob("*/**/*.py")} == set()


@each_document
def test_shown_commands_exist(document):
    for words in command_lines(document):
        known = parser_of(words)._option_string_actions.keys()
        assert {word for word in words if word.startswith("--")} <= known, words


def test_commands_of_the_runbook_are_complete():
    runbook = text_of("deploy/RUNBOOK.md")
    printed = re.findall(r"(?m)(?:^ {4,}|`)(?:RELEASE=\$V )?stackmgr (\w[^`\n#]*)", runbook)
    for command in {command for command in printed if not command.endswith(("--help", "..."))}:
        arguments = shlex.split(re.sub(r"\b(KEY_ID|MANAGER_ID|STACK_ID|UUID)\b", str(uuid4()), command))
        assert cli.make_parser().parse_args(arguments).run


def test_the_pages_show_every_command():
    commands = {
        (name, *second)
        for name, parser in subcommands(cli.make_parser()).items()
        for second in ([(nested,) for nested in subcommands(parser)] or [()])
    }
    pages = ("README.md", "deploy/RUNBOOK.md", "deploy/COMMANDS.md")
    shown = [line for page in pages for line in command_lines(page)]
    assert [words for words in commands if not any((*row[: len(words)],) == words for row in shown)] == []


@pytest.mark.parametrize("document", [*DOCUMENTS, *MANIFESTS])
def test_named_variables_are_read(document):
    tests = ("tests/**/*.py",) if document.startswith("tests/") else ()
    read = variables_in("stackmgr/**/*.py", "deploy/*.py", *tests)
    assert set(VARIABLE.findall(text_of(document))) - read == set()


def test_settings_and_the_example_name_each_other():
    examples = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("deploy/*.env.example"))
    assert variables_in("stackmgr/**/*.py", "deploy/*.py") - set(VARIABLE.findall(examples)) == set()
    groups = ("STACKMGR_TEST_", "STACKMGR_FUZZ_")
    of_tests = {name for name in variables_in("tests/**/*.py") if name.startswith(groups)}
    assert of_tests - set(VARIABLE.findall(text_of("tests/README.md"))) == set()
    text = EXAMPLE.read_text()
    assert set(VARIABLE.findall(text)) == OF_OPTIONS
    commented = dict(re.findall(r"^#([A-Z_]+)=(.*)$", text, re.MULTILINE))
    for option in OPTIONS.values():
        if option.default not in ("", None, paths.DEFAULT_WHITELIST):
            assert commented[option.variable] == option.default_text
    # An operator sources it for `stackmgr migrate`; every line is a comment or one plain assignment.
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Z_]+=('[^']*'|[\w.:/-]*)", line) for line in lines)
    script = f'set -eu; . "{EXAMPLE}"; printf %s "$STACKMGR_DATABASE_URL"'
    sourced = subprocess.check_output(["/bin/sh", "-c", script], text=True)
    assert re.match("postgresql://stackmgr_service:PASSWORD@.*&sslmode=verify-full&", sourced)


def test_named_support_files_and_incidents_exist():
    runbook, reasons = text_of("deploy/RUNBOOK.md"), text_of("deploy/REASONS.md")
    files = {path.stem for path in ROOT.glob("deploy/support/*.sql")}
    assert {*re.findall(r"`support (\w+)`", runbook + reasons)} <= files
    incidents = re.findall(r"^- \*\*(.+?)\*\*", runbook.partition("## Incidents")[2], re.MULTILINE)
    named = re.findall(r"\*\*(.+?)\*\*", reasons.partition("## 500")[2])
    assert [name for name in named if not any(each.lower().startswith(name) for each in incidents)] == []


def test_the_commit_hook_knows_each_area():
    [repository] = yaml.safe_load(text_of(".pre-commit-config.yaml"))["repos"]
    *_, hook = repository["hooks"]
    areas = re.findall(r"`(\w+:)`", text_of(".github/CONTRIBUTING.md").partition("## Commits")[2])
    assert len(areas) > 10
    entry = re.compile(hook["entry"], re.MULTILINE)
    assert [area for area in areas if not entry.search(f"{area} do a thing")] == []


def test_no_secret_or_environment_is_committed():
    assert {".venv/", "deploy/secrets/", ".stackmgr/"} <= {*text_of(".gitignore").splitlines()}


def test_versions_are_announced():
    assert BUNDLE["info"]["version"] == "1.0.0"
    [newest, *_] = re.findall(r"^## (?!Unreleased)(\S+)", text_of("CHANGELOG.md"), re.MULTILINE)
    assert newest == stackmgr.__version__
    assert {*re.findall(r"stackmgr[:-](\d[\d.]*\d)", text_of("README.md"))} == {stackmgr.__version__}


def test_data_of_a_wheel_is_inside_of_its_package(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "_PACKAGE", tmp_path / "stackmgr")
    for folder in (tmp_path / "sql", tmp_path / "stackmgr" / "sql"):  # the first of another package
        folder.mkdir(parents=True)
        assert paths.directory("sql") == folder
