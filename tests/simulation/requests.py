"""Requests without HTTP: each an event of the scheduler that verifies a key and reads or writes stacks.

The outcome of each is compared with the tables of the simulated server, which record every commit.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from greenlet import getcurrent

from stackmgr import scheduler
from stackmgr.access import api_keys
from stackmgr.access.credentials import Credential
from stackmgr.access.verifiers.database import DatabaseVerifier
from stackmgr.admission import Admission
from stackmgr.database import retries, statements
from stackmgr.database.pool import Database
from stackmgr.database.retries import RetryAction
from stackmgr.errors import DatabaseError, NotFound, ServiceError, ServiceUnavailable, Unauthorized
from stackmgr.limits import MAX_PAGE_SIZE, PAGE_NAME_BYTES
from stackmgr.reasons import ReasonSlug
from stackmgr.stacks import cursor, repository
from tests.simulation.tables import SHOWN, Tables
from tests.simulation.world import World, asker
from tests.support.examples import STORED

_OUTCOME_UNKNOWN = (RetryAction.RETRY_IF_READ, RetryAction.CLOSE)
# Attempts that a request is owed.
_ATTEMPTS = {RetryAction.RETRY: 4, RetryAction.RECONNECT_ALL: 2, RetryAction.RETRY_IF_READ: 2}
# Faults by which a request may end with an exception that production code does not foresee.
_UNFORESEEN = {
    MemoryError: {"unforeseen exception", "check fails"}, ValueError: {"unusable parameter"},
}  # fmt: skip
_SLACK = 0.01  # seconds
_LEAST_OF_BATCH = 0.2  # of the time of a request
_LIMIT = 50  # of a list
_LONG = " " * (PAGE_NAME_BYTES // MAX_PAGE_SIZE)  # makes a name long: a list reads its page again


class Key:
    def __init__(self, number: int, tables: Tables) -> None:
        random = f"{number:032}"
        self.text = f"stackmgr_{random}{api_keys._checksum(random)}"
        self.digest = api_keys.digest(self.text)
        self.tables = tables
        names = "external", "identity", "key", "manager"
        tables.keys[self.digest] = tuple(f"{name} {number}" for name in names)
        self.is_used = False
        self.remembered: object = None  # by the worker
        self.stacks: dict[str, int] = {}  # acknowledged: by id, how many revisions are known

    @property
    def manager_id(self) -> str:
        return self.tables.keys[self.digest][3]


class Memory(Admission):
    """The worker's memory of a key; sometimes it is empty, as another worker's."""

    def __init__(self, key: Key, *, forgets: bool) -> None:
        super().__init__()
        self._key = key
        self.remembered = None if forgets else key.remembered

    def accept(self, manager_id: str, remember: object = None) -> None:
        self._key.remembered = remember


class Client:
    """Sends one request after the other, and remembers what was acknowledged."""

    def __init__(
        self, world: World, number: int, key: Key, database: Database, verifier: DatabaseVerifier
    ) -> None:
        self.world, self.random = world, world.random
        self.name, self.sent = f"client {number}", 0
        self.key, self.tables = key, key.tables
        self.database, self.verifier = database, verifier
        self.retried: tuple[str, Any] | None = None  # a create of unknown outcome
        self.end_call: Callable[[], None] = lambda: None

    def next_call(self) -> Callable[[], None] | None:
        if self.sent >= self.world.plan["requests"]:
            return None
        self.sent += 1
        request = f"{self.name}.{self.sent}"
        chance = self.random.random()
        if self.world.plan.get("hot") and self.retried is None and len(self.key.stacks) > 1:
            operation = self._update
        elif self.retried is not None or chance < 0.35 or not self.key.stacks:
            operation = self._create
        elif chance < 0.6:
            operation = self._get
        else:
            operation = self._list if chance < 0.75 else self._update
        return partial(self._serve, request, operation)

    def _serve(self, request: str, operation: Callable[[str], None]) -> None:
        world, started, stalled = self.world, self.world.now, self.world.stalled
        getcurrent().request = request
        world.note("request", request, operation.__name__[1:])
        outcome = "done"
        try:
            operation(request)
        except ServiceError as ex:
            outcome = f"{ex.reason} {getattr(ex, 'sqlstate', None)}"
            self._judge(request, ex, world.now - started)
        except Exception as ex:  # noqa: BLE001 - whatever production code raises
            outcome = repr(ex)
            if not _UNFORESEEN.get(type(ex), set()).intersection(world.touched[request]):
                world.fail("requests fail in foreseen ways", f"{request}: {ex!r}", ex)
        finally:
            getcurrent().request = None
            seconds = world.now - started - (world.stalled - stalled)
            world.note("response", request, outcome, round(seconds, 4))
            if seconds > 1.4 * world.plan["deadline"] + 0.1 and "no more threads" not in world.faults:
                world.fail("a request ends by its deadline", f"{request} took {seconds:.2f} s")
            self.end_call()

    def _judge(self, request: str, error: ServiceError, seconds: float) -> None:
        """Check that each of the request's own attempts was touched by a fault; `Line` judges the others."""
        if isinstance(error, ServiceUnavailable):
            error = error.__cause__
        if not isinstance(error, DatabaseError):
            self._wrong(request, error.reason)
        elif error.reason != ReasonSlug.NO_CONNECTION:
            action = retries.retry_action(error)
            if error.reason == ReasonSlug.REJECTED and error.sqlstate is None:
                self._wrong(request, "rejected, without the reason of the server")
            statement = statements.load(error.statement or "")
            owed = 1 if action is RetryAction.RETRY_IF_READ and statement.writes else _ATTEMPTS.get(action, 1)
            touched = self.world.touched[request]
            made = touched.count(f"{statement.name} alone")
            if action in {RetryAction.CLOSE, RetryAction.FAIL}:
                made += touched.count(f"{statement.name} of 1")
            # A batch of writes ends at its leader's deadline.
            least = _LEAST_OF_BATCH if statement.writes else 1.0
            if action is RetryAction.CLOSE and seconds < least * self.world.plan["deadline"] - _SLACK:
                self.world.fail("a request has all of its time", f"{request}: {seconds:.3f} s")
            if made < owed:
                detail = f"{request}: {error.reason} {error.sqlstate} {touched}"
                self.world.fail("an error names a fault of its request", detail)

    def _begin(self, session: Any) -> Credential:
        memory = Memory(self.key, forgets=self.random.random() < 0.3)
        credential = Credential(self.key.text, session, self.verifier, memory, None)
        try:
            credential.begin()
        except Unauthorized as ex:
            self._wrong("a key that exists is rejected", ex.reason)
            raise
        return credential

    def _manager(self, before: str, credential: Credential) -> str:
        # Without an identity an exception has ended its second verification.
        manager_id = (credential.identity.manager_id or "") if credential.identity else before
        if manager_id not in (before, self.key.manager_id):
            self._wrong("verified as", manager_id)
        self.key.is_used = True
        return manager_id

    def _pause(self, session: Any) -> None:
        """Sometimes wait for something else than the database, with the connection or without it."""
        chance = self.random.random()
        if chance < 0.3:
            longest = 0.4 * self.world.plan["deadline"]  # as a wait in line
            scheduler.Signal().wait(self.random.choice((0.001, 0.02, longest)))

    def _wrong(self, *details: object) -> None:
        self.world.fail("responses agree with what is stored", f"{self.name}: {details}")

    def _owner(self, stack_id: str) -> str:
        return self.tables.stacks[stack_id][0]

    def _written(self, statement: str, request: str, call: Callable[[], Any]) -> Any:
        applied = self.tables.applied
        try:
            returned = call()
        except ServiceUnavailable:
            if applied[statement, request]:
                self._wrong(request, "nothing was changed, but it was committed")
            raise
        except DatabaseError as ex:
            if retries.retry_action(ex) not in _OUTCOME_UNKNOWN and applied[statement, request]:
                self._wrong(f"{ex.reason} {ex.sqlstate}", "but it was committed")
            raise
        if request in self.tables.unconfirmed:
            self._wrong(request, "acknowledged, but no standby has confirmed it")
        return returned

    def _create(self, request: str) -> None:
        name = f"name {request}" + _LONG * (self.sent % 4 == 0)
        fresh = f"idempotency {request}", STORED._replace(name=name)
        key, configuration = self.retried = self.retried or fresh
        manager_id = ""
        session = self.database.session()

        def create() -> Any:
            nonlocal manager_id
            before, credential = self.key.manager_id, self._begin(session)
            self._pause(session)
            new = repository.create(credential.rows, repository.create_operation(key, configuration, request))
            manager_id = self._manager(before, credential)
            return new

        stack, is_new = self._written("stack_create", request, create)
        self.retried = None
        receipt = self.tables.receipts.get((manager_id, key))
        if receipt is None or receipt[1] != stack.stack_id:
            self._wrong("acknowledged create", stack, "but stored is", receipt)
        elif is_new and self.tables.revisions[stack.stack_id][0][1:] != tuple(stack[SHOWN]):
            self._wrong("created", stack)
        else:
            self.key.stacks.setdefault(stack.stack_id, 1)

    def _any_stack(self) -> str:
        return self.random.choice(list(self.key.stacks)[: 3 if self.world.plan.get("hot") else None])

    def _get(self, request: str) -> None:
        stack_id = self._any_stack()
        known = self.key.stacks[stack_id]
        session = self.database.session()
        before, credential = self.key.manager_id, self._begin(session)
        stack = None
        operation = repository.get_operation(stack_id + self._unusable())
        with suppress(NotFound):
            stack = repository.get_or_update(credential.rows, operation)
        manager_id = self._manager(before, credential)
        if stack is not None:
            self._seen(known, stack, stack_id, manager_id)
        elif self._owner(stack_id) == manager_id:
            self._wrong("not found", stack_id)

    def _unusable(self) -> str:
        return "\0" if self.world.chance("unusable parameter", asker()) else ""

    def _seen(self, known: int, stack: Any, stack_id: str, manager_id: str) -> None:
        if stack.stack_id != stack_id or self._owner(stack_id) != manager_id:
            self._wrong(manager_id, "asked for", stack_id, "but got", stack, "of", self._owner(stack_id))
            return
        revisions = [revision[1:] for revision in self.tables.revisions[stack_id]]
        if tuple(stack[SHOWN]) not in revisions:
            self._wrong("no such revision", stack)
        elif revisions.index(tuple(stack[SHOWN])) + 1 < known:
            self._wrong("older than acknowledged", stack)

    def _list(self, request: str) -> None:
        known = dict(self.key.stacks)
        session = self.database.session()
        before, credential = self.key.manager_id, self._begin(session)
        page, _ = repository.list_page(credential.rows, repository.list_operation(cursor.START, _LIMIT))
        manager_id = self._manager(before, credential)
        found = {stack.stack_id: stack for stack in page}
        for stack_id in known:
            if stack_id not in found and self._owner(stack_id) == manager_id:
                self._wrong("not in the list", stack_id)
        for stack_id, stack in found.items():
            self._seen(known.get(stack_id, 0), stack, stack_id, manager_id)

    def _update(self, request: str) -> None:
        stack_id, manager_id = self._any_stack(), ""
        session = self.database.session()
        changes = {"name": f"name {request}{self._unusable()}"}

        def update() -> Any:
            nonlocal manager_id
            before, credential = self.key.manager_id, self._begin(session)
            self._pause(session)
            try:
                operation = repository.update_operation(stack_id, changes, request)
                return repository.get_or_update(credential.rows, operation)
            finally:
                if credential.outcome == "accepted":
                    manager_id = self._manager(before, credential)

        try:
            stack = self._written("stack_update", request, update)
        except NotFound:
            if self._owner(stack_id) == manager_id:
                self._wrong("not found", stack_id)
            return
        revisions = self.tables.revisions[stack_id]
        place = next((n for n, revision in enumerate(revisions, 1) if revision[0] == request), 0)
        if not place or tuple(stack[SHOWN]) != revisions[place - 1][1:]:
            self._wrong("acknowledged update", stack)
        self.key.stacks[stack_id] = max(self.key.stacks[stack_id], place)
