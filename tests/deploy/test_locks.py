"""The locks, held against setup.cfg, pyproject.toml and what is installed."""

import json
import os
import re
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from importlib import metadata

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.releases import ROOT

LOCKS = {path.stem: path.read_text("utf-8") for path in sorted((ROOT / "deploy/locks").glob("*.txt"))}
EXTRAS = {"runtime": ["metrics"], "dev": ["dev"], "release": ["docs"], "test": ["test"]}
ENTRY = re.compile(r"^(?P<requirement>[^\s#].*?)(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n", re.MULTILINE)
LICENCE_OF_CLASSIFIER = {"License :: OSI Approved :: BSD License": "BSD-3-Clause"}


def locked(name: str) -> dict[str, list[Requirement]]:
    entries: dict[str, list[Requirement]] = {}
    for match in ENTRY.finditer(LOCKS[name]):
        requirement = Requirement(match["requirement"])
        entries.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return entries


def wanted(name: str) -> list[Requirement]:
    if name == "build":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        return [*map(Requirement, project["build-system"]["requires"])]
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    sections = [parser["options"]["install_requires"]]
    sections += [parser["options.extras_require"][extra] for extra in EXTRAS[name]]
    lines = [line for section in sections for line in section.splitlines()]
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def here(requirement: Requirement, extra: str = "") -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def needed(requirements: list[Requirement]) -> set[str]:
    """Return the packages that *requirements* lead to on this Python, by what the installed ones say."""
    seen: set[tuple[str, str]] = set()
    rest = list(requirements)
    while rest:
        requirement = rest.pop()
        package = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {extra for name, extra in seen if name == package}:
            seen.add((package, extra))
            rest += [r for r in map(Requirement, metadata.requires(package) or []) if here(r, extra)]
    return {package for package, _ in seen}


@pytest.mark.parametrize("name", LOCKS)
def test_lock_has_exactly_what_is_needed_with_hashes_and_agrees_with_the_tests(name):
    left = ENTRY.sub("", LOCKS[name])
    assert [line for line in left.splitlines() if not line.lstrip().startswith("#")] == []
    # No path of the machine that made it.
    assert re.findall(r".*(?://|file:|(?<![\w.])/\w).*", LOCKS[name]) == []
    for requirement in (entry for entries in locked(name).values() for entry in entries):
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), requirement
    own, tested = ({match[0] for match in ENTRY.finditer(LOCKS[each])} for each in (name, "test"))
    assert own <= tested
    entries = locked(name)
    applies = {package for package, found in entries.items() if any(map(here, found))}
    assert applies == needed(wanted(name))
    renew = (ROOT / "deploy/locks/renew").read_text()
    assert re.findall(rf"^lock {name}(?: --extra (\w+))? ", renew, re.MULTILINE) == EXTRAS.get(name, [""])
    for requirement in wanted(name):
        for entry in entries[canonicalize_name(requirement.name)]:
            [pin] = entry.specifier
            assert requirement.specifier.contains(pin.version, prereleases=True), requirement


@pytest.mark.parametrize("path", ["deploy/bootstrap.sh", "deploy/Containerfile", "deploy/install"])
def test_whatever_installs_does_it_by_a_lock(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    command = r"^.*\bpip(?:_of \S+ install|\"| wheel| install)? +(?:--\S+ +)*-{1,2}[-\w]+.*$"
    lines = re.findall(command, text, re.MULTILINE)
    assert lines
    assert all(re.search(r'--(require-hashes|no-deps|no-index)|"\$@"', line) for line in lines), lines
    assert set(re.findall(r"deploy/locks/(\w+)\.txt", text)) <= LOCKS.keys()


def licence(package: str) -> str:
    about = metadata.metadata(package)
    declared = about.get("License-Expression") or about.get("License")
    if declared and "\n" not in declared:
        return declared
    [classifier] = [text for text in about.get_all("Classifier", []) if text.startswith("License ::")]
    return LICENCE_OF_CLASSIFIER[classifier]


def test_the_list_of_licences_is_that_of_what_serves():
    text = (ROOT / "deploy/locks/README.md").read_text(encoding="utf-8").partition("## Runtime packages")[2]
    [_, *rows] = re.findall(r"^\| ([\w-]+) \| (.+?) \| (.+?) \| .+? \|$", text, re.MULTILINE)
    assert {package for package, *_ in rows} == locked("runtime").keys()
    ranges = {r.name: f"`{r.specifier}`" for r in wanted("runtime")}
    for package, said, declared in rows:
        assert said == ranges[package] if package in ranges else not said.startswith("`"), package
        if any(map(here, locked("runtime")[package])):
            assert declared == licence(package), package


def test_bill_of_materials_lists_what_serves():
    command = [sys.executable, ROOT / "deploy/bill_of_materials.py"]
    environ = os.environ | {"SOURCE_DATE_EPOCH": "86400", "TZ": "Asia/Tokyo"}
    printed = subprocess.check_output(command, text=True, env=environ)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(printed) is None
    bill = json.loads(printed)
    assert bill["metadata"]["timestamp"] == "1970-01-02T00:00:00Z"
    listed = {each["name"]: each["licenses"][0]["expression"] for each in bill["components"]}
    inside = {"libpq", "openssl", "krb5", "com_err", "openldap", "cyrus-sasl", "keyutils", "libxcrypt"}
    assert listed.keys() == locked("runtime").keys() - {"tzdata"} | inside
    assert all(each["hashes"] for each in bill["components"] if each["purl"].startswith("pkg:pypi/"))
    below = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    direct = below[bill["metadata"]["component"]["bom-ref"]]
    names = {re.fullmatch("pkg:pypi/(.+)@.+", each)[1] for each in direct}
    assert names == {requirement.name for requirement in wanted("runtime")}
