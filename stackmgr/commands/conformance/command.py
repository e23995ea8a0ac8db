"""`stackmgr conformance`: check a deployment against the specification, as its clients see it.

It sends ordinary requests with the keys of two managers, also through a proxy, and needs no database.
"""

import argparse
import getpass
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import urllib3

from stackmgr.commands.arguments import base_url
from stackmgr.commands.command import FOUND, TOKENS, Command, argument
from stackmgr.commands.conformance.checks import CHECKS, Check
from stackmgr.commands.conformance.client import Client, Deployment, Failed
from stackmgr.commands.output import print_json, print_note, printable
from stackmgr.errors import CommandError
from stackmgr.stacks import whitelist


@dataclass(frozen=True)
class Result:
    """The result of one check; `failure` is None where it passed."""

    section: str
    title: str
    failure: str | None
    seconds: float


def _keys() -> tuple[str, str]:
    if sys.stdin.isatty():
        return getpass.getpass("first manager's API key: "), getpass.getpass("second manager's API key: ")
    lines = sys.stdin.read().split()
    if len(lines) != 2:
        raise CommandError("two keys are expected on standard input, each on its own line")
    return lines[0], lines[1]


def _run(deployment: Deployment, section: str, title: str, check: Check) -> Result:
    started = time.monotonic()
    failure = None
    try:
        check(deployment)
    except Failed as ex:
        failure = str(ex)
    except urllib3.exceptions.HTTPError as ex:
        failure = f"no response: {type(ex).__name__}"
    except (KeyError, TypeError, IndexError) as ex:
        failure = f"a response of another form than specified: {type(ex).__name__} {ex}"
    return Result(section, title, failure, time.monotonic() - started)


def _require_reachable(deployment: Deployment) -> None:
    """Raise CommandError if the deployment does not respond, or does not accept one of the keys."""
    for name, client in (("first", deployment.first), ("second", deployment.second)):
        try:
            found = client.page("limit=1").status
        except urllib3.exceptions.HTTPError as ex:
            raise CommandError(f"the deployment does not respond: {type(ex).__name__}") from ex
        except Failed:
            continue
        if found in {401, 429, 503}:
            raise CommandError(f"the {name} manager's key is not accepted: status {found}")


def _junit(path: Path, base: str, results: list[Result]) -> None:
    suite = ET.Element(
        "testsuite",
        name=f"conformance {base}",
        tests=str(len(results)),
        failures=str(sum(result.failure is not None for result in results)),
        time=f"{sum(result.seconds for result in results):.3f}",
    )
    for result in results:
        attributes = {"classname": f"section {result.section}", "name": result.title}
        case = ET.SubElement(suite, "testcase", attributes, time=f"{result.seconds:.3f}")
        if result.failure is not None:
            ET.SubElement(case, "failure", message=printable(result.failure))
    try:
        ET.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as ex:
        raise CommandError(f"{path} cannot be written: {ex.strerror}") from ex


def _conformance(arguments: argparse.Namespace) -> None:
    first, second = _keys()
    if first == second:
        raise CommandError("the two keys must be of two managers")
    base = arguments.base_url
    deployment = Deployment(Client(base, first), Client(base, second), whitelist.load_configured())
    _require_reachable(deployment)
    results = []
    for section, title, check in CHECKS:
        result = _run(deployment, section, title, check)
        results.append(result)
        if not arguments.json:
            print(f"{'ok' if result.failure is None else 'FAIL':4}  {section:4} {title}", flush=True)
            if result.failure is not None:
                print(f"           {printable(result.failure)}")
    if arguments.junit is not None:
        _junit(arguments.junit, base, results)
    failed = sum(result.failure is not None for result in results)
    if arguments.json:
        print_json(
            {
                "base_url": base,
                "failed": failed,
                "checks": [
                    {"section": each.section, "title": each.title, "failure": each.failure}
                    for each in results
                ],
            }
        )
    print_note(f"{len(results)} checks, {failed} failed.")
    if failed:
        sys.exit(FOUND)


COMMAND = Command(
    name="conformance",
    summary="check a deployment against the specification, as its clients see it",
    description="Send requests to a deployment, also through its proxy, and check the responses "
    "against the specification. Reads the API keys of two managers from standard input, each on its "
    "own line. Creates about 60 stacks, which nothing deletes: use managers that exist for this.",
    reads=TOKENS,
    found="a check failed",
    run=_conformance,
    arguments=[
        argument("base_url", type=base_url, metavar="BASE_URL", help="as https://stackmgr.example.com"),
        argument("--junit", type=Path, metavar="FILE", help="also write the results as JUnit XML"),
    ],
)
