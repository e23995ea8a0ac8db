"""Keys that Unkey verifies against a model: each response follows from what Unkey does and has done."""

import json
import math
from types import SimpleNamespace
from uuid import uuid4

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from hypothesis.stateful import run_state_machine_as_test as run_model

from tests.access.circuits import OTHERS, PROBE, STARTS, TIMEOUT, Circuits, simulated_clock
from tests.support.examples import configuration
from tests.support.http_server import hang_up, reset, respond
from tests.support.unkey_server import accepted, verification

# What Unkey does for a key, whether that is a response; status, reason and Retry-After of the service.
REJECTIONS = {
    "unknown": (respond(200, verification("NOT_FOUND")), True, 401, "key_unknown", None),
    "limited": (respond(200, verification("RATE_LIMITED")), True, 429, "key_limited", None),
    "no JSON": (respond(200, b"<html>"), True, 503, "verifier_response_not_json", None),
    "403": (respond(403, {}, "Retry-After: 17"), True, 503, "verifier_http_403", None),
    "429": (respond(429, {}), True, 429, "verifier_http_429", None),
    "429 for 30 s": (respond(429, {}, "Retry-After: 30"), True, 429, "verifier_http_429", 30),
    "429 for an hour": (respond(429, {}, "Retry-After: 3600"), True, 429, "verifier_http_429", 60),
    "503": (respond(503, {}, "Retry-After: 17"), False, 503, "verifier_http_503", 17),
    **{f"{n}": (respond(n, {}), False, 503, f"verifier_http_{n}", None) for n in (408, 499, 500)},
    "hang up": (hang_up, False, 503, "verifier_response_broken", None),
    "reset": (reset, False, 503, "verifier_response_broken", None),
}
DOES = [*REJECTIONS, "500", "503", "hang up", "own", "own", "own", "other"]
OPERATIONS = {  # and the status for the stack's manager and for another one
    "get": (200, 404, lambda it: it.client.get(it.stack_id)),
    "update": (200, 404, lambda it: it.client.update(it.stack_id, {"name": "Other"})),
    "list": (200, 200, lambda it: it.client.page()),
    "create": (201, 201, lambda it: it.client.create(configuration())),
    "no id": (400, 400, lambda it: it.client.get("no-uuid")),
}
OPENS, CLOSES = "The verifier does not respond: requests return 503", "The verifier responds again"
CODES = {401: "unauthorized", 429: "rate_limited", 503: "service_unavailable"}
COUNT = b"SELECT count(*) FROM stackmgr.stack_revisions"
REBIND = b"UPDATE stackmgr.managers SET identity_id = %s WHERE external_id = %s::text::uuid"


class Keys(RuleBasedStateMachine):
    """Five keys, of a manager and of another one; *fixtures* are those of pytest."""

    fixtures: SimpleNamespace

    @initialize(at=st.sampled_from(STARTS))
    def start(self, at):
        self.clock, self.unkey, self.caplog = self.fixtures.clock, self.fixtures.unkey, self.fixtures.caplog
        self.clock.seconds, self.circuits, self.limited_until = at, Circuits(), -math.inf
        self.identities = {name: (str(uuid4()), f"id_{uuid4()}") for name in ("own", "other")}
        self.does, self.is_rebound, self.lines = dict.fromkeys(range(5), "own"), False, []
        self.unkey.behave, self.unkey.read_deadline = self.behave, None
        verifier = self.fixtures.make_verifier(self.unkey.url, TIMEOUT)
        self.client = self.fixtures.client_with("", verifier=verifier, observers=[self.lines.append])
        self.kept_since = None  # a connection to Unkey
        self.send(0, "create")
        self.stack_id = self.lines[0]["stack_id"]

    def behave(self, sock, request):
        name = self.does[int(json.loads(request.body)["key"])]
        rejection = REJECTIONS.get(name)
        return (rejection[0] if rejection else respond(200, accepted(*self.identities[name])))(sock, request)

    def verify(self, key):
        """Return status, reason, Retry-After (None and no reason: accepted) and how often Unkey is asked."""
        now = self.clock.seconds
        if (left := self.limited_until - now) > 0:
            return 429, "verifier_http_429", max(1, math.ceil(round(left, 3))), 0
        call = self.circuits.begin(key, now)
        if isinstance(call, str):
            return 503, call, None, 0
        is_kept = not call.probes and self.kept_since is not None and now - self.kept_since < 30
        _, is_response, *outcome = REJECTIONS.get(self.does[key], (None, True, None, None, None))
        self.circuits.end(call, now, responded=is_response)
        if outcome[1] == "verifier_http_429" and outcome[2]:
            self.limited_until = now + outcome[2]
        is_lost = outcome[1] == "verifier_response_broken"
        if is_response:
            self.kept_since = self.kept_since if is_kept else now
        elif not call.probes:
            self.kept_since = None
        return *outcome, 1 + (is_kept and is_lost)

    @rule(data=st.data())
    def send_some(self, data):
        """Let Unkey do something else for some keys, and send requests with one key or several."""
        some, others = data.draw(st.sampled_from([(), (0,), (1, 2), range(5)])), data.draw(st.booleans())
        self.does |= dict.fromkeys(some, data.draw(st.sampled_from(DOES)))
        key = data.draw(st.integers(0, 4))
        for number in range(data.draw(st.integers(1, 4))):
            self.send((key + number * others) % 5, data.draw(st.sampled_from([*OPERATIONS])))

    def send(self, key, name):
        was_open, asked = self.circuits.of_all.is_open, len(self.unkey.requests)
        rows, own, others, call = self.fixtures.admin.execute(COUNT).fetchone()[0], *OPERATIONS[name]
        self.client.key = str(key)
        self.caplog.clear()
        response = call(self)
        status, reason, seconds, times = self.verify(key)
        code = CODES.get(status, "accepted")
        if status is None:
            status, reason = own if self.does[key] == "own" else others, self.lines[-1]["reason"]
            if self.does[key] == "own" and self.is_rebound:
                status, reason = 500, "manager_binding"
        else:
            assert self.client.statements == []
        assert (self.lines[-1]["verifier"], self.lines[-1]["reason"]) == (code, reason)
        assert response.status_int == status
        assert response.headers.get("Retry-After") == (str(seconds) if seconds else None)
        assert reason != "verifier_http_429" or response.json["message"] == "Too many requests."
        assert len(self.unkey.requests) == asked + times
        written = status in (200, 201) and name in ("create", "update")
        assert self.fixtures.admin.execute(COUNT).fetchone()[0] == rows + written
        now_open = self.circuits.of_all.is_open
        logged = [text for text in self.caplog.messages if text.startswith((OPENS, CLOSES))]
        assert logged == [] if now_open == was_open else logged[0].startswith(OPENS if now_open else CLOSES)

    @rule(seconds=st.sampled_from([OTHERS, PROBE, TIMEOUT, 28.5, 30.0, 60.0]))
    def let_pass(self, seconds):
        self.clock.seconds += seconds

    @rule()
    def change_worker(self):
        self.client.change_worker()

    @rule()
    def rebind(self):
        self.is_rebound = not self.is_rebound
        external_id, identity_id = self.identities["own"]
        saved = f"rebound {identity_id}" if self.is_rebound else identity_id
        self.fixtures.admin.execute(REBIND, [saved, external_id])


@pytest.fixture
def fixtures(unkey, make_verifier, client_with, admin, caplog, monkeypatch):
    return SimpleNamespace(clock=simulated_clock(monkeypatch), **locals())


def test_verified_keys_are_those_of_the_model(fixtures):
    Keys.fixtures = fixtures
    run_model(Keys)
