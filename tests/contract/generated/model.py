"""The contract in memory: the stacks of each manager, and the required response to each request."""

from dataclasses import dataclass, field
from itertools import accumulate
from uuid import UUID

from tests.contract.generated.strategies import Document, normal


@dataclass
class Account:
    """One manager's stacks, oldest first, each with its place among all that were ever created."""

    stacks: dict[str, Document] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    receipts: dict[str, tuple[Document, str]] = field(default_factory=dict)


class Model:
    """What the service must be like after the requests so far."""

    def __init__(self, managers: int, page_bytes: int) -> None:
        self.accounts = [Account() for _ in range(managers)]
        self._page_bytes = page_bytes
        self._seen: set[str] = set()
        self._created = 0

    def create(self, manager: int, key: str, document: Document) -> tuple[int, str | None]:
        """Return the status that a create must get, and the id of the stack if it was created before."""
        receipt = self.accounts[manager].receipts.get(key)
        if receipt is None:
            return 201, None
        wanted, stack_id = receipt
        return (200, stack_id) if wanted == normal(document) else (409, None)

    def created(self, manager: int, key: str, document: Document, response: Document) -> None:
        """Take note of a new stack."""
        self._new(response["id"])
        self._new(response["current_revision_id"])
        account, stack_id = self.accounts[manager], response["id"]
        ids = {"id": stack_id, "current_revision_id": response["current_revision_id"]}
        account.receipts[key] = (normal(document), stack_id)
        account.stacks[stack_id] = ids | normal(document)
        account.places[stack_id] = self._created
        self._created += 1

    def updated(self, manager: int, stack_id: str, changes: Document, response: Document) -> None:
        """Take note of a new revision."""
        self._new(response["current_revision_id"])
        new = {"current_revision_id": response["current_revision_id"]}
        self.accounts[manager].stacks[stack_id] |= new | normal(changes)

    def page(self, manager: int, limit: int, before: int | None) -> tuple[list[Document], int | None]:
        """Return a page of the stacks before a place, and the place before which the next page begins."""
        account = self.accounts[manager]
        places = [place for place in account.places.values() if before is None or place < before]
        newest = sorted(places, reverse=True)
        by_place = {place: account.stacks[stack_id] for stack_id, place in account.places.items()}
        totals = accumulate(len(by_place[place]["name"].encode()) for place in newest[:limit])
        size = max(sum(total <= self._page_bytes for total in totals), 1)
        return [by_place[place] for place in newest[:size]], newest[size - 1] if newest[size:] else None

    def _new(self, identifier: str) -> None:
        assert str(UUID(identifier)) == identifier
        assert identifier not in self._seen
        self._seen.add(identifier)
