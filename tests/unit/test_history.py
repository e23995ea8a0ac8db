"""Each rule of the history checker holds for a small history, and breaks when one entry is changed."""

import dataclasses

import pytest

from tests.support.history import Dump, Operation, Revision, check

FIRST = {
    "name": "a",
    "allocation": [{"token_address": "0x1", "weight_bps": 10000}],
    "schedule": {"preset": "daily"},
}
SECOND = FIRST | {"name": "b"}
OLD = {"id": "s", "current_revision_id": "r1"} | FIRST
NEW = {"id": "s", "current_revision_id": "r2"} | SECOND


class History:
    """A create, an update, and then a get, a repeated create and a list at the same time."""

    def __init__(self):
        self.items = [NEW]
        self.operations = {}
        self.add("create", "create", 1.0, OLD, status=201, supplied=FIRST, key="k")
        self.add("update", "update", 3.0, NEW, supplied={"name": "b"}, stack_id="s", owner="m")
        self.add("get", "get", 5.0, NEW, stack_id="s", owner="m")
        self.add("replay", "create", 5.0, NEW, supplied=FIRST, key="k")
        self.add("list", "list", 5.0, {"items": self.items, "next_cursor": None})
        self.line = [
            Revision("r1", "s", "m", 1, "create", FIRST),
            Revision("r2", "s", "m", 2, "update", SECOND),
        ]
        self.found = Dump({"s": self.line}, {"s": ("r2", SECOND)}, {("m", "k"): "s"})

    def add(self, tag, kind, sent, body, *, status=200, **details):
        given = details | {"completed": sent + 1, "status": status, "body": body}
        self.operations[tag] = Operation(tag, kind, "m", sent, **given)

    def alter(self, name, **changes):
        self.operations[name] = dataclasses.replace(self.operations[name], **changes)

    def revise(self, index, **changes):
        self.line[index] = dataclasses.replace(self.line[index], **changes)

    def violated_rules(self):
        return {violation.rule for violation in check(list(self.operations.values()), self.found)}


MUTATIONS = {
    "another field changed": ("R1", lambda h: h.alter("update", supplied={"schedule": {"preset": "daily"}})),
    "a revision has no request": ("R1", lambda h: h.revise(0, tag="x")),
    "a revision is missing": ("R1", lambda h: h.revise(1, number=3)),
    "the stack is an older revision": ("R1", lambda h: h.found.current.update(s=("r1", FIRST))),
    "one operation made both": ("R2", lambda h: h.revise(1, tag="create")),
    "a rejected update was carried out": ("R2", lambda h: h.alter("update", status=503, body=None)),
    "a read made a revision": ("R2", lambda h: h.revise(1, tag="get")),
    "an acknowledged update is lost": ("R3", lambda h: h.line.pop()),
    "a response matches no revision": ("R3", lambda h: h.alter("get", body=NEW | FIRST)),
    "an update returns the result of another": ("R3", lambda h: h.alter("update", body=OLD)),
    "a read is older than an update": ("R4", lambda h: h.alter("get", body=OLD)),
    "an update is not newer than a read": ("R4", lambda h: h.alter("get", sent=1.5, completed=2.5)),
    "a read returns a later update": ("R5", lambda h: h.alter("get", sent=1.5, completed=2.5)),
    "a key has two stacks": ("R6", lambda h: h.found.receipts.update({("m", "k"): "other"})),
    "a stack has no receipt": ("R6", lambda h: h.found.receipts.clear()),
    "a stack has two receipts": ("R6", lambda h: h.found.receipts.update({("m", "other"): "s"})),
    "other input is taken for the same": ("R6", lambda h: h.alter("replay", supplied=SECOND)),
    "the same input is taken for other": ("R6", lambda h: h.alter("replay", status=409, body={})),
    "a foreign stack was read": ("R7", lambda h: h.alter("get", manager="other")),
    "a stack of one's own was denied": ("R7", lambda h: h.alter("get", status=404, body={})),
    "a list omits a stack": ("R7", lambda h: h.items.clear()),
    "a list shows a stack twice": ("R7", lambda h: h.items.append(NEW)),
    "a repeated create returns an old revision": ("R8", lambda h: h.alter("replay", body=OLD)),
}


@pytest.mark.parametrize("status", [200, 500, None])
def test_a_correct_history_breaks_no_rule(status):
    history = History()
    if status != 200:  # it is unknown whether the update was carried out
        history.alter("update", status=status, body={})
    assert history.violated_rules() == set()


@pytest.mark.parametrize("status", [500, None])
def test_an_update_without_a_response_may_not_have_been_carried_out(status):
    history = History()
    history.alter("update", status=status, body={})
    history.line.pop()
    history.found.current["s"] = ("r1", FIRST)
    for reader in ("get", "replay"):
        history.alter(reader, body=OLD)
    history.items[0] = OLD
    assert history.violated_rules() == set()


@pytest.mark.parametrize(("rule", "mutate"), MUTATIONS.values(), ids=MUTATIONS)
def test_a_mutated_history_breaks_the_rule(rule, mutate):
    history = History()
    mutate(history)
    assert rule in history.violated_rules()
