"""Fill a database with stacks as years of use would leave them: by COPY, from a seed, skewed.

The biggest manager has a tenth of all stacks, or another share, and the others follow a power law.  Rows lie
in the order of creation, the managers mixed, each stack with 1.7 revisions in the mean.  Keys are dropped
before the COPY and built after it.  Each manager has one API key, whose digest is that of the manager's id.
"""

import hashlib
import itertools
import json
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from stackmgr.operate import migrations
from stackmgr.stacks.configuration import Configuration
from tests.support.examples import ADDRESSES, PRESETS

STACKS_PER_MANAGER = 50
CONFIGURATIONS = 5000
REVISIONS = {1: 65, 2: 20, 3: 10, 7: 5}  # of a stack: number to weight; 1.7 in the mean
BIGGEST_SHARE = 0.1
_BATCH = 10_000
_TABLES = ("stacks", "stack_revisions", "creation_receipts")
_COLUMNS = {
    "stacks": "manager_id, stack_id, revision_id, revision_number, name, allocation, preset, created_at",
    "stack_revisions": "manager_id, stack_id, revision_number, revision_id, name, allocation, preset,"
    " identity_id, request_id, created_at, key_id",
    "creation_receipts": "manager_id, idempotency_key, input_digest, stack_id, created_at",
}
FIRST_CREATION = datetime(2023, 1, 1, tzinfo=UTC)
_YEARS = timedelta(days=1000)

_KEYS = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid)
FROM pg_constraint
WHERE contype IN ('p', 'u', 'f') AND conrelid = ANY (%s::regclass[])
ORDER BY contype <> 'f'
"""
_INDEXES = """
SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid)
FROM pg_index
WHERE indrelid = ANY (%s::regclass[])
    AND indexrelid NOT IN (SELECT conindid FROM pg_constraint)
"""
_RULES = """
SELECT contypid::regtype::text, conname, pg_get_constraintdef(oid)
FROM pg_constraint
WHERE contypid <> 0 AND contype = 'c' AND connamespace = 'stackmgr'::regnamespace
"""


_ISSUE_KEYS = b"""
INSERT INTO stackmgr.api_keys (key_digest, key_id, external_id, identity_id, last_four)
SELECT sha256(manager_id::text::bytea), manager_id, external_id, identity_id, 'abcd'
FROM stackmgr.managers
"""


class LoadedStack(NamedTuple):
    """One stack of the load, before it becomes text."""

    manager: int
    stack_id: str
    revision_prefix: str
    revisions: int
    configuration: int
    created_at: str


def manager_id(number: int) -> str:
    """Return the id of a manager; number 0 is the biggest."""
    return str(UUID(bytes=hashlib.sha256(b"manager %d" % number).digest()[:16], version=4))


def managers_of(stacks: int) -> int:
    return max(10, stacks // STACKS_PER_MANAGER)


def rows(stacks: int, seed: int, share: float = BIGGEST_SHARE) -> Iterator[LoadedStack]:
    """Yield the stacks in the order of their creation; the same ones for the same arguments."""
    chance = random.Random(seed)  # noqa: S311 - to be repeatable
    others = managers_of(stacks) - 1
    weights = [1 / (number + 10) ** 0.8 for number in range(others)]
    total = sum(weights)
    shares = [share, *((1 - share) * weight / total for weight in weights)]
    cumulated = list(itertools.accumulate(shares))
    step = _YEARS / stacks
    for begin in range(0, stacks, _BATCH):
        count = min(_BATCH, stacks - begin)
        owners = chance.choices(range(others + 1), cum_weights=cumulated, k=count)
        revisions = chance.choices(list(REVISIONS), list(REVISIONS.values()), k=count)
        random_bytes = chance.randbytes(32 * count).hex()
        for number in range(count):
            ids = random_bytes[64 * number : 64 * number + 64]
            yield LoadedStack(
                owners[number],
                ids[:12] + "4" + ids[13:16] + "8" + ids[17:32],
                ids[32:44] + "4" + ids[45:48] + "8" + ids[49:56],
                revisions[number],
                (begin + number) % CONFIGURATIONS,
                str(FIRST_CREATION + (begin + number) * step),
            )


def configurations(seed: int) -> list[str]:
    """Return name, allocation and preset as the columns of a COPY; 1 to 12 tokens, few of most."""
    chance = random.Random(seed)  # noqa: S311 - to be repeatable
    made = []
    for number in range(CONFIGURATIONS):
        addresses = sorted(chance.sample(ADDRESSES, min(chance.randint(1, 12), chance.randint(1, 12))))
        cuts = sorted(chance.choices(range(10001), k=len(addresses) - 1))
        weights = [high - low for low, high in zip([0, *cuts], [*cuts, 10000], strict=True)]
        items = [
            {"token_address": address, "weight_bps": weight}
            for address, weight in zip(addresses, weights, strict=True)
        ]
        name = f"Strategy {number} {'x' * chance.randint(0, 20)}"
        made.append(f"{name}\t{json.dumps(items, separators=(',', ':'))}\t{chance.choice(PRESETS)}")
    return made


def _revision(row: LoadedStack, number: int) -> str:
    return f"{row.revision_prefix}{number:08x}"


def lines(table: str, stacks: int, seed: int, share: float = BIGGEST_SHARE) -> Iterator[str]:
    """Yield the text of a table's rows, as COPY reads it."""
    ids = [manager_id(number) for number in range(managers_of(stacks))]
    texts = configurations(seed)
    digests = ["\\\\x" + Configuration(*text.split("\t")).digest().hex() for text in texts]
    for row in rows(stacks, seed, share):
        owner, text = ids[row.manager], texts[row.configuration]
        if table == "stacks":
            revision = f"{_revision(row, row.revisions)}\t{row.revisions}"
            yield f"{owner}\t{row.stack_id}\t{revision}\t{text}\t{row.created_at}\n"
        elif table == "creation_receipts":
            digest = digests[row.configuration]
            yield f"{owner}\tkey-{row.stack_id}\t{digest}\t{row.stack_id}\t{row.created_at}\n"
        else:
            for number in range(1, row.revisions + 1):
                yield (
                    f"{owner}\t{row.stack_id}\t{number}\t{_revision(row, number)}\t{text}\t"
                    f"identity-{row.manager}\trequest-{row.stack_id[:16]}\t{row.created_at}\t{owner}\n"
                )


def _copy(url: str, table: str, stacks: int, seed: int, share: float) -> None:
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(b"SET synchronous_commit = off")
        cursor.execute(b"SET timezone = 'UTC'")
        with cursor.copy(f"COPY stackmgr.{table} ({_COLUMNS[table]}) FROM STDIN".encode()) as copy:
            source = lines(table, stacks, seed, share)
            while batch := "".join(itertools.islice(source, 500)):
                copy.write(batch)


def load(url: str, stacks: int, seed: int, share: float = BIGGEST_SHARE) -> None:
    """Migrate the database behind *url* and fill it; *share* of the stacks are the biggest manager's.

    The rules of the domains are dropped for the while too: the rows keep them by construction, and checking
    them would take most of the time.
    """
    migrations.apply(url)
    tables = [f"stackmgr.{table}" for table in _TABLES]
    with psycopg.connect(url, autocommit=True) as admin:
        keys: list[Any] = admin.execute(_KEYS, [tables]).fetchall()
        indexes: list[Any] = admin.execute(_INDEXES, [tables]).fetchall()
        rules: list[Any] = admin.execute(_RULES).fetchall()
        for table, name, _ in keys:
            admin.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}".encode())
        for name, _ in indexes:
            admin.execute(f"DROP INDEX {name}".encode())
        for domain, name, _ in rules:
            admin.execute(f"ALTER DOMAIN {domain} DROP CONSTRAINT {name}".encode())
        _insert_managers(admin, managers_of(stacks))
        with ProcessPoolExecutor(len(_TABLES)) as processes:
            for done in [processes.submit(_copy, url, table, stacks, seed, share) for table in _TABLES]:
                done.result()
        for domain, name, definition in rules:
            admin.execute(f"ALTER DOMAIN {domain} ADD CONSTRAINT {name} {definition} NOT VALID".encode())
        for _, definition in indexes:
            admin.execute(definition.encode())
        for table, name, definition in reversed(keys):
            admin.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}".encode())
        admin.execute(b"CHECKPOINT")


def _insert_managers(admin: psycopg.Connection[Any], count: int) -> None:
    with admin.cursor().copy(
        b"COPY stackmgr.managers (manager_id, external_id, identity_id) FROM STDIN"
    ) as copy:
        for number in range(count):
            identity = manager_id(number)
            copy.write(f"{identity}\t{identity}\tidentity-{number}\n")
    admin.execute(_ISSUE_KEYS)
