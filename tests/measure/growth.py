"""Fill a database with stacks of managers who send no requests, as the service would have created them."""

import json
import random
from collections.abc import Iterator

import psycopg

from stackmgr.stacks.configuration import Configuration
from tests.support import examples

_CONFIGURATIONS = 5000
_LEAST_MANAGERS = 2000  # in tables of one page PostgreSQL would not use an index
_STACKS_OF_A_MANAGER = 50
# A tenth of the stacks are one manager's.  Of a hundred stacks 65, 20, 10 and 5 have 1, 2, 3 and 7 revisions.
_FILL = (
    "SET session_replication_role = replica",
    "SET synchronous_commit = off",
    """
    CREATE TEMPORARY TABLE filled_managers AS
    SELECT number, gen_random_uuid() AS manager_id FROM generate_series(0, {managers} - 1) AS number
    """,
    """
    INSERT INTO stackmgr.managers (manager_id, external_id, identity_id)
    SELECT manager_id, manager_id, 'filled-' || number FROM filled_managers
    """,
    """
    INSERT INTO stackmgr.api_keys (key_digest, key_id, external_id, identity_id, last_four)
    SELECT sha256(manager_id::text::bytea), manager_id, manager_id, 'filled-' || number, 'none'
    FROM filled_managers
    """,
    """
    CREATE TEMPORARY TABLE filled_stacks AS
    SELECT
        number AS stack, number % {configurations} AS configuration,
        gen_random_uuid() AS stack_id, gen_random_uuid() AS revision_id,
        CASE WHEN random() < 0.1 THEN 0 ELSE floor(random() ^ 2 * {managers})::integer END AS manager,
        CASE WHEN rank < 65 THEN 1 WHEN rank < 85 THEN 2 WHEN rank < 95 THEN 3 ELSE 7 END AS revisions,
        now() - interval '1000 days' * (1 - number / {stacks}.0) AS created_at
    FROM (SELECT number, random() * 100 AS rank FROM generate_series(1, {stacks}) AS number) AS numbers
    """,
    "CREATE INDEX ON filled_managers (number)",
    "ANALYZE filled_managers, filled_stacks",
    """
    CREATE TEMPORARY VIEW filled AS
    SELECT stacks.*, manager_id, name, allocation, preset, input_digest
    FROM filled_stacks AS stacks
    JOIN filled_managers AS managers ON managers.number = manager
    JOIN filled_configurations AS configurations ON configurations.number = configuration
    """,
    """
    INSERT INTO stackmgr.stacks (
        manager_id, stack_id, revision_id, revision_number, name, allocation, preset, created_at
    )
    SELECT manager_id, stack_id, revision_id, revisions, name, allocation, preset, created_at FROM filled
    """,
    """
    INSERT INTO stackmgr.stack_revisions (
        manager_id, stack_id, revision_number, revision_id, name, allocation, preset, identity_id, request_id,
        created_at, key_id
    )
    SELECT
        manager_id, stack_id, number,
        CASE WHEN number = revisions THEN revision_id ELSE gen_random_uuid() END,
        name, allocation, preset, 'filled-' || manager, 'request-' || stack, created_at, manager_id::text
    FROM filled, generate_series(1, revisions) AS number
    """,
    """
    INSERT INTO stackmgr.creation_receipts (manager_id, idempotency_key, input_digest, stack_id, created_at)
    SELECT manager_id, 'key-' || stack, input_digest, stack_id, created_at FROM filled
    """,
)
# The domains check their rules here, once for each configuration.
_CREATE_CONFIGURATIONS = b"""
CREATE TEMPORARY TABLE filled_configurations (
    number integer, name stackmgr.stack_name, allocation stackmgr.allocation, preset stackmgr.preset,
    input_digest bytea
)
"""


def fill(url: str, stacks: int) -> None:
    """Add so many *stacks*, with their revisions and receipts, to a migrated database."""
    managers = max(_LEAST_MANAGERS, stacks // _STACKS_OF_A_MANAGER)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_CREATE_CONFIGURATIONS)
        with connection.cursor().copy(b"COPY filled_configurations FROM STDIN") as copy:
            for row in _configurations():
                copy.write_row(row)
        for statement in _FILL:
            counts = {"managers": managers, "stacks": stacks, "configurations": _CONFIGURATIONS}
            connection.execute(statement.format(**counts).encode())
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(b"VACUUM ANALYZE")


def _configurations() -> Iterator[tuple[int, str, str, str, bytes]]:
    """Yield configurations in normal form, of 1 to 12 tokens: few of most."""
    chance = random.Random(1)  # noqa: S311 - to be repeatable
    for number in range(_CONFIGURATIONS):
        count = min(chance.randint(1, 12), chance.randint(1, 12))
        allocation = json.dumps(examples.random_allocation(chance, count), separators=(",", ":"))
        columns = (f"Strategy {number}", allocation, chance.choice(examples.PRESETS))
        yield number, *columns, Configuration(*columns).digest()
