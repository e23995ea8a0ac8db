"""The statements of sql/ as scripts for pgbench: of each request, the verification and the operation.

pgbench has no variables but numbers and those given at its start, so that each script stands for one request
with values of its own, and there are many of them.  Ids that must be new each time are made by the server.
"""

import random
import re
from pathlib import Path

import psycopg

from stackmgr import api_keys, cursor, statements
from tests.bench.requests import SCENARIOS, Manager
from tests.examples import ADDRESSES

# pgbench takes no more than 128.
_SCRIPTS = 120

_STATEMENTS = {"get": "stack_get", "list": "stack_list", "create": "stack_create", "update": "stack_update"}
_NEW_EACH_TIME = {"idempotency_key": "gen_random_uuid()::text", "revision_id": "gen_random_uuid()"}
_NEW_STACK = {"stack_id": "gen_random_uuid()"}
_ALLOCATION = ",".join(f'{{"token_address":"{address}","weight_bps":1000}}' for address in ADDRESSES[:10])


def _script(names: list[str], number: int, made: dict[str, str]) -> tuple[str, set[str]]:
    """Return statements as a script whose variables end with *number*, and their parameters."""
    lines, parameters = [], set()
    for name in names:
        statement = statements.load(name)
        given = [made.get(p, f":{p}_{number}") for p in statement.parameters]
        text = re.sub(r"\$([0-9]+)", lambda found, given=given: given[int(found[1]) - 1], statement.text.decode())
        lines.append(text)
        parameters |= set(statement.parameters) - made.keys()
    return "\n".join(lines) + "\n", parameters


def _values(manager: Manager, row: tuple[str, str], chance: random.Random) -> dict[str, str]:
    manager_id, identity_id = row
    return {
        "key_digest": f"\\x{api_keys.digest(manager.key).hex()}",
        "manager_id": manager_id,
        "identity_id": identity_id,
        "stack_id": chance.choice(manager.stack_ids),
        "after_created_at": cursor.START.created_at.isoformat(),
        "after_stack_id": str(cursor.START.stack_id),
        "row_limit": "26",
        "input_digest": f"\\x{bytes(32).hex()}",
        "name": f"Renamed {chance.randrange(10**6)}",
        "allocation": f"[{_ALLOCATION}]",
        "preset": "weekly",
        "request_id": str(chance.randrange(10**12)),
    }


def write(scenario: str, url: str, managers: list[Manager], folder: Path) -> tuple[list[str], dict[str, str]]:
    """Write a scenario's scripts; return them as `path@weight`, and the variables they want.

    An update names no allocation and no preset, as the scenario's requests do: what is null is written out.
    """
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT external_id::text, manager_id::text, identity_id FROM stackmgr.managers"
        )
        rows = {external_id: (manager_id, identity_id) for external_id, manager_id, identity_id in found}
    chance = random.Random(scenario)  # noqa: S311 - to be repeatable
    scripts: list[str] = []
    variables: dict[str, str] = {}
    for operation, weight in SCENARIOS[scenario].items():
        made = _NEW_EACH_TIME | {
            "create": _NEW_STACK,
            "update": {"allocation": "NULL", "preset": "NULL"},
        }.get(operation, {})
        for _ in range(_SCRIPTS // len(SCENARIOS[scenario])):
            number = len(scripts)
            manager = chance.choice(managers)
            text, parameters = _script(["api_key_verify", _STATEMENTS[operation]], number, made)
            values = _values(manager, rows[manager.external_id], chance)
            variables |= {f"{name}_{number}": values[name] for name in parameters}
            path = folder / f"{scenario}-{number}.sql"
            path.write_text(text)
            scripts.append(f"{path}@{weight}")
    return scripts, variables
