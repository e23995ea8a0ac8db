"""The settings of a verifier: accepted values, and messages that repeat no secret."""

from pathlib import Path

import pytest

from stackmgr import paths, settings, startup
from stackmgr.settings import SettingsError

GOOD = {
    "STACKMGR_DATABASE_URL": "postgresql:///stackmgr",
    "STACKMGR_VERIFIER": "unkey",
    "STACKMGR_UNKEY_ROOT_KEY": "unkey_rootkey",
}


def problems(**changed: str) -> str:
    with pytest.raises(SettingsError) as rejected:
        settings.from_environ(GOOD | changed)
    return str(rejected.value)


@pytest.mark.parametrize(("name", "concurrency", "connections", "concurrent"), [
    ("unkey", 64, 8, 64), ("database", 64, 8, 24), ("database", 4, 8, 4),
])  # fmt: skip
def test_database_verifier_limits_concurrency(name, concurrency, connections, concurrent):
    numbers = {"STACKMGR_CONCURRENCY": str(concurrency), "STACKMGR_DATABASE_CONNECTIONS": str(connections)}
    chosen = settings.from_environ(GOOD | numbers | {"STACKMGR_VERIFIER": name})
    assert startup.concurrent_requests(chosen) == concurrent


def test_the_texts_state_how_many_requests_the_database_verifier_has_at_once():
    number = startup.concurrent_requests(settings.from_environ(GOOD | {"STACKMGR_VERIFIER": "database"}))
    for path in (Path(settings.__file__), paths.directory("deploy") / "stackmgr.env.example"):
        assert f"at most {number}" in path.read_text("utf-8")


HOST = "https://unkey.example.org"
SECONDS = ("0.1", "2", "2.5", "20"), ("0", "0.05", "21", "-1", "nan", "inf", "1e1", "2s", " 2", "\u0662")
VALUES = {  # accepted, and rejected
    "unkey_url": ((f"{HOST}:8443/unkey/", "http://127.0.0.1:7070", "http://[::1]:7070", "HTTP://Unkey"), (
        "unkey.example.org", "ftp://unkey.example.org", "https://", "https://:443", "https://unk ey.example",
        "https://un\u212aey", "https://[::1", "https://[::1::2]", "https://user@unkey.example.org",
        "https://user:hunter2@unkey.example.org", *(HOST + port for port in (":0", ":", ":65536", ":https")),
        *(f"{HOST}/{more}" for more in ("?a=b", "?", "#a", " a", "a\r\nX: y")),
    )),
    "unkey_root_key": (("!~",), ("two words", "line\nfeed", "schl\u00fcssel")),
    "verify_timeout": SECONDS, "queue_timeout": SECONDS,
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_accepted_or_rejected_and_not_repeated(name):
    variable, (accepted, rejected) = f"STACKMGR_{name.upper()}", VALUES[name]
    for text in accepted:
        value = getattr(settings.from_environ(GOOD | {variable: text}), name)
        assert value == type(value)(text)
    for text in rejected:
        message = problems(**{variable: text})
        assert variable in message
        assert text not in message or name.endswith("timeout")


@pytest.mark.parametrize("name", ["STACKMGR_DATABASE_URL", "STACKMGR_UNKEY_ROOT_KEY"])
def test_a_secret_may_stand_in_a_file(tmp_path, monkeypatch, name):
    monkeypatch.setattr("io.text_encoding", lambda given, *_: given or pytest.fail("that of the locale"))
    (tmp_path / "secret").write_text(f" {GOOD[name]}\r\n", "utf-8")
    environ = {key: value for key, value in GOOD.items() if key != name} | {"STACKMGR_VERIFY_TIMEOUT": "7"}
    found = settings.from_environ(environ | {f"{name}_FILE": str(tmp_path / "secret")})
    assert found.database_url == GOOD["STACKMGR_DATABASE_URL"]
    verifier = startup.make_verifier(found, None)
    assert (verifier._endpoint._breaker._timeout, verifier._root_key) == (7.0, "unkey_rootkey")


def test_secret_needs_one_readable_place(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "empty").write_text("\n")
    name = "STACKMGR_UNKEY_ROOT_KEY_FILE"
    assert "both set" in problems(**{name: str(tmp_path / "empty")})
    for path in ("missing", "binary", "."):
        message = problems(STACKMGR_UNKEY_ROOT_KEY="", **{name: str(tmp_path / path)})
        assert f"{name} names a file that cannot be read" in message
    assert "is not set" in problems(STACKMGR_UNKEY_ROOT_KEY="", **{name: str(tmp_path / "empty")})
