"""The rules of the history checker, each on a small history that holds and the same spoiled in one place."""

import dataclasses

import pytest

from tests.support.history import Dump, Operation, Revision, check

FIRST = {
    "name": "a",
    "allocation": [{"token_address": "0x1", "weight_bps": 10000}],
    "schedule": {"preset": "daily"},
}
SECOND = FIRST | {"name": "b"}
NEVER = float("inf")


def told(revision_id, configuration):
    return {"id": "s", "current_revision_id": revision_id} | configuration


class History:
    """A create, an update, and then a get, a repeated create and a list at the same time."""

    def __init__(self):
        page = {"items": [told("r2", SECOND)], "next_cursor": None}
        update = {"supplied": {"name": "b"}, "stack_id": "s", "owner": "m"}
        self.operations = {
            "create": self._operation("create", 1.0, 201, told("r1", FIRST), supplied=FIRST, key="k"),
            "update": self._operation("update", 3.0, 200, told("r2", SECOND), **update),
            "get": self._operation("get", 5.0, 200, told("r2", SECOND), stack_id="s", owner="m"),
            "replay": self._operation("create", 5.0, 200, told("r2", SECOND), supplied=FIRST, key="k"),
            "list": self._operation("list", 5.0, 200, page),
        }
        for tag, operation in self.operations.items():
            operation.tag = tag
        self.line = [
            Revision("r1", "s", "m", 1, "create", FIRST),
            Revision("r2", "s", "m", 2, "update", SECOND),
        ]
        self.found = Dump({"s": self.line}, {"s": ("r2", SECOND)}, {("m", "k"): "s"})
        self.items = page["items"]

    @staticmethod
    def _operation(kind, sent, status, body, **details):
        return Operation("", kind, "m", sent, answered=sent + 1, status=status, body=body, **details)

    def alter(self, name, **changes):
        self.operations[name] = dataclasses.replace(self.operations[name], **changes)

    def revise(self, index, **changes):
        self.line[index] = dataclasses.replace(self.line[index], **changes)

    def broken(self):
        return {violation.rule for violation in check(list(self.operations.values()), self.found)}


SPOILED = {
    "another field changed": ("R1", lambda h: h.alter("update", supplied={"schedule": {"preset": "daily"}})),
    "a revision is nobody's": ("R1", lambda h: h.revise(0, tag="x")),
    "a revision is missing": ("R1", lambda h: h.revise(1, number=3)),
    "the stack is an older revision": ("R1", lambda h: h.found.current.update(s=("r1", FIRST))),
    "one operation made both": ("R2", lambda h: h.revise(1, tag="create")),
    "a refused update was carried out": ("R2", lambda h: h.alter("update", status=503, body=None)),
    "a read made a revision": ("R2", lambda h: h.revise(1, tag="get")),
    "an acknowledged update is lost": ("R3", lambda h: h.line.pop()),
    "an answer is no revision's": ("R3", lambda h: h.alter("get", body=told("r2", FIRST))),
    "an update is answered with another's": ("R3", lambda h: h.alter("update", body=told("r1", FIRST))),
    "a read is older than an update": ("R4", lambda h: h.alter("get", body=told("r1", FIRST))),
    "an update is not newer than a read": ("R4", lambda h: h.alter("get", sent=1.5, answered=2.5)),
    "a read knows what is not sent yet": ("R5", lambda h: h.alter("get", sent=1.5, answered=2.5)),
    "a key has two stacks": ("R6", lambda h: h.found.receipts.update({("m", "k"): "other"})),
    "other input is taken for the same": ("R6", lambda h: h.alter("replay", supplied=SECOND)),
    "the same input is taken for other": ("R6", lambda h: h.alter("replay", status=409, body={})),
    "a foreign stack was read": ("R7", lambda h: h.alter("get", manager="other")),
    "a stack of one's own was denied": ("R7", lambda h: h.alter("get", status=404, body={})),
    "a list leaves a stack out": ("R7", lambda h: h.items.clear()),
    "a list shows a stack twice": ("R7", lambda h: h.items.append(told("r2", SECOND))),
    "a creation is replayed as it was": ("R8", lambda h: h.alter("replay", body=told("r1", FIRST))),
}


def test_a_history_that_holds_breaks_no_rule():
    assert History().broken() == set()


@pytest.mark.parametrize(("status", "answered"), [(500, 4.0), (None, NEVER)])
@pytest.mark.parametrize("carried_out", [True, False])
def test_an_unknown_outcome_may_be_either(status, answered, carried_out):
    history = History()
    history.alter("update", status=status, answered=answered, body={})
    if not carried_out:
        history.line.pop()
        history.found.current["s"] = ("r1", FIRST)
        for reader in ("get", "replay"):
            history.alter(reader, body=told("r1", FIRST))
        history.items[0] = told("r1", FIRST)
    assert history.broken() == set()


@pytest.mark.parametrize(("rule", "spoil"), SPOILED.values(), ids=SPOILED)
def test_a_spoiled_history_breaks_the_rule(rule, spoil):
    history = History()
    spoil(history)
    assert rule in history.broken()
