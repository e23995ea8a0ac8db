"""The statements of sql/ as scripts for pgbench: of each request, the verification and the operation.

pgbench makes up numbers, not ids.  So the ids are kept in a table, from which a client takes others once in a
thousand transactions, and those that must be new each time are made by the server, in the statement.
"""

import random
import re
from pathlib import Path

import psycopg

from stackmgr.access import api_keys
from stackmgr.database import statements
from stackmgr.limits import PAGE_NAME_BYTES
from stackmgr.stacks import cursor
from tests.bench.requests import SCENARIOS, TOKENS_OF_A_STACK, Manager
from tests.support.examples import ADDRESSES

_STATEMENTS = {"get": "stack_get", "list": "stack_list", "create": "stack_create", "update": "stack_update"}

_MADE: dict[str, dict[str, str]] = {
    "get": {},
    "list": {},
    "create": {
        "idempotency_key": "gen_random_uuid()::text",
        "stack_id": "gen_random_uuid()",
        "revision_id": "gen_random_uuid()",
    },
    # What is left out of an update is null, which no variable of pgbench can be.
    "update": {"revision_id": "gen_random_uuid()", "allocation": "NULL", "preset": "NULL"},
}

_ALLOCATION = ",".join(
    f'{{"token_address":"{address}","weight_bps":{10000 // TOKENS_OF_A_STACK}}}'
    for address in ADDRESSES[:TOKENS_OF_A_STACK]
)
VARIABLES = {
    "executed": "0",
    "after_created_at": cursor.START.created_at.isoformat(),
    "after_stack_id": str(cursor.START.stack_id),
    "row_limit": "26",
    "page_bytes": str(PAGE_NAME_BYTES),
    "input_digest": f"\\x{bytes(32).hex()}",
    "name": "Renamed by pgbench",
    "allocation": f"[{_ALLOCATION}]",
    "preset": "weekly",
    "request_id": "6f1f2c0e-8a55-4b57-b0a1-0a4f3b7d9b11",
}

_TABLE = """
    CREATE TABLE public.choice (
        number integer PRIMARY KEY, key_digest text, manager_id text, identity_id text, stack_id text
    );
    GRANT SELECT ON public.choice TO stackmgr_app
"""
_CHOOSE = """\
\\if :executed % 1000 = 0
\\set number random(1, :choices)
SELECT key_digest, manager_id, identity_id, stack_id FROM public.choice WHERE number = :number \\gset
\\endif
\\set executed :executed + 1
"""


def _for_pgbench(name: str, made: dict[str, str]) -> str:
    statement = statements.load(name)
    given = [made.get(parameter, f":{parameter}") for parameter in statement.parameters]
    return re.sub(r"\$([0-9]+)", lambda found: given[int(found[1]) - 1], statement.text.decode()) + "\n"


def prepare(url: str, managers: list[Manager]) -> dict[str, str]:
    """Make the table of ids, in no order, and return the variables that the scripts want."""
    pairs = [(manager, stack_id) for manager in managers for stack_id in manager.stack_ids]
    random.Random(url).shuffle(pairs)  # noqa: S311 - what is drawn is no secret
    with psycopg.connect(url) as connection:
        connection.execute(_TABLE)
        found = connection.execute(
            "SELECT external_id::text, manager_id::text, identity_id FROM stackmgr.managers"
        )
        bound = {external_id: (manager_id, identity_id) for external_id, manager_id, identity_id in found}
        with connection.cursor() as rows:
            rows.executemany(
                "INSERT INTO public.choice VALUES (%s, %s, %s, %s, %s)",
                [
                    (number, f"\\x{api_keys.digest(m.key).hex()}", *bound[m.external_id], stack_id)
                    for number, (m, stack_id) in enumerate(pairs, 1)
                ],
            )
    return VARIABLES | {"choices": str(len(pairs))}


def write(scenario: str, folder: Path) -> list[str]:
    """Write the scripts of a scenario and return them as `path@weight`."""
    scripts = []
    for operation, weight in SCENARIOS[scenario].items():
        path = folder / f"{scenario}-{operation}.sql"
        names = ("api_key_verify", _STATEMENTS[operation])
        path.write_text(_CHOOSE + "".join(_for_pgbench(name, _MADE[operation]) for name in names))
        scripts.append(f"{path}@{weight}")
    return scripts
