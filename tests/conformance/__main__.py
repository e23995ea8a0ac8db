"""Check a deployment against the specification, as its clients see it, also through its proxy.

    python -m tests.conformance https://stackmgr.example.com < keys

reads the API keys of two managers from standard input, each on its own line.  It creates 23 stacks,
which nothing deletes: use managers that exist for this.  STACKMGR_TOKENS names the deployment's whitelist.
Exit status: 0 every check passed, 1 the checks could not run, 2 wrong usage, 3 a check failed.
"""

import argparse
import sys

import urllib3

from stackmgr.stacks import whitelist
from tests.conformance.checks import CHECKS, Check, Deployment, HttpClient


def _keys() -> tuple[str, str]:
    lines = sys.stdin.read().split()
    if len(lines) != 2:
        sys.exit("two keys are expected on standard input, each on its own line")
    return lines[0], lines[1]


def _failure(deployment: Deployment, check: Check) -> str | None:
    try:
        check(deployment)
    except AssertionError as ex:
        return str(ex)
    except urllib3.exceptions.HTTPError as ex:
        return f"no response: {type(ex).__name__}"
    except (ValueError, KeyError, TypeError, IndexError) as ex:
        return f"a response of another form than specified: {type(ex).__name__} {ex}"
    return None


def _require_reachable(deployment: Deployment) -> None:
    for name, client in (("first", deployment.first), ("second", deployment.second)):
        try:
            found = client.page("limit=1").status_int
        except urllib3.exceptions.HTTPError as ex:
            sys.exit(f"the deployment does not respond: {type(ex).__name__}")
        except (AssertionError, ValueError, KeyError):
            continue
        if found in {401, 429, 503}:
            sys.exit(f"the {name} manager's key is not accepted: status {found}")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("base_url", metavar="URL")
    base = parser.parse_args().base_url
    if not base.startswith(("http://", "https://")):
        parser.error("URL must begin with http:// or https://")
    first, second = _keys()
    if first == second:
        sys.exit("the two keys must be of two managers")
    deployment = Deployment(HttpClient(base, first), HttpClient(base, second), whitelist.load_configured())
    _require_reachable(deployment)
    failed = 0
    for section, title, check in CHECKS:
        failure = _failure(deployment, check)
        print(f"{'ok' if failure is None else 'FAIL':4}  {section:4} {title}", flush=True)
        if failure is not None:
            failed += 1
            print(f"           {failure.encode('unicode_escape').decode()}")
    print(f"{len(CHECKS)} checks, {failed} failed.")
    if failed:
        sys.exit(3)


if __name__ == "__main__":
    main()
