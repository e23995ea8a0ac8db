"""The settings of a verifier: accepted values, and messages that repeat no secret."""

from pathlib import Path

import pytest

from stackmgr import paths, settings, startup
from stackmgr.settings import SettingsError
from tests.support.tables import each_case

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


@pytest.mark.parametrize(
    "url",
    ["https://unkey.example.org:8443/unkey/", "http://127.0.0.1:7070", "http://[::1]:7070", "http://unkey"],
)
def test_an_address_of_a_self_hosted_unkey_is_accepted(url):
    assert settings.from_environ(GOOD | {"STACKMGR_UNKEY_URL": url}).unkey_url == url


OTHER_URLS = {
    "scheme": ("unkey.example.org", "ftp://unkey.example.org"),
    "host": ("https://", "https://:443", "https://unk ey.example.org", "https://[::1", "https://[::1::2]"),
    "user": ("https://user@unkey.example.org", "https://user:hunter2@unkey.example.org"),
    "port": [f"https://unkey.example.org:{port}" for port in ("0", "", "65536", "https")],
    "more": [f"https://unkey.example.org/{more}" for more in ("?a=b", "?", "#a", " a", "a\r\nX: y")],
}


@each_case("url", OTHER_URLS)
def test_anything_else_is_rejected_and_not_repeated(url):
    message = problems(STACKMGR_UNKEY_URL=url)
    assert "STACKMGR_UNKEY_URL" in message
    assert "hunter2" not in message


@pytest.mark.parametrize("name", ["verify_timeout", "queue_timeout"])
def test_a_timeout_is_a_number_of_seconds_in_its_range(name):
    variable = f"STACKMGR_{name.upper()}"
    for seconds in ("0.1", "2", "2.5", "20"):
        assert getattr(settings.from_environ(GOOD | {variable: seconds}), name) == float(seconds)
    for seconds in ("0", "0.05", "21", "-1", "nan", "inf", "1e1", "2s", " 2", "\u0662"):
        assert variable in problems(**{variable: seconds})


@pytest.mark.parametrize("root_key", ["two words", "line\nfeed", "schl\u00fcssel"])
def test_invalid_root_key_is_not_repeated(root_key):
    message = problems(STACKMGR_UNKEY_ROOT_KEY=root_key)
    assert "STACKMGR_UNKEY_ROOT_KEY" in message
    assert root_key not in message


@pytest.mark.parametrize("name", ["STACKMGR_DATABASE_URL", "STACKMGR_UNKEY_ROOT_KEY"])
def test_a_secret_may_stand_in_a_file(tmp_path, name):
    (tmp_path / "secret").write_text(GOOD[name] + "\n")
    environ = {key: value for key, value in GOOD.items() if key != name}
    found = settings.from_environ(environ | {f"{name}_FILE": str(tmp_path / "secret")})
    assert found == settings.from_environ(GOOD)


def test_secret_needs_one_readable_place(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "empty").write_text("\n")
    name = "STACKMGR_UNKEY_ROOT_KEY_FILE"
    assert "both set" in problems(**{name: str(tmp_path / "empty")})
    for path in ("missing", "binary", "."):
        message = problems(STACKMGR_UNKEY_ROOT_KEY="", **{name: str(tmp_path / path)})
        assert f"{name} names a file that cannot be read" in message
    assert "is not set" in problems(STACKMGR_UNKEY_ROOT_KEY="", **{name: str(tmp_path / "empty")})
