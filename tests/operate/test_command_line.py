"""Arguments that `stackmgr` rejects before it uses the database, and the messages."""

import sys

import pytest

from stackmgr import cli

EXTERNAL_ID = "0f0e0d0c-0b0a-4988-8776-655443322110"
ISSUE = ("keys", "issue", "--external-id", EXTERNAL_ID)
UNSET = "STACKMGR_DATABASE_URL is not set: set it to a PostgreSQL connection string"
INVALID = "STACKMGR_DATABASE_URL is not a valid PostgreSQL connection string"


@pytest.fixture
def command(monkeypatch, capsys):
    """Return a function that runs the command in this process and returns its status and its output."""

    def run(*arguments, url="postgresql://operator:hunter2@127.0.0.1:1/stackmgr"):
        monkeypatch.setattr(sys, "argv", ["stackmgr", *arguments])
        monkeypatch.delenv("STACKMGR_DATABASE_URL", raising=False)
        if url is not None:
            monkeypatch.setenv("STACKMGR_DATABASE_URL", url)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "required: COMMAND"),
        (("keys",), "required: COMMAND"),
        (("serve",), "invalid choice: 'serve'"),
        (("migrate", "now"), "unrecognized arguments: now"),
        (("keys", "issue"), "required: --external-id"),
        (("keys", "issue", "--external-id", EXTERNAL_ID.replace("-", "")), "must be a UUID with hyphens"),
        (("keys", "issue", "--external-id", f"{{{EXTERNAL_ID}}}"), "must be a UUID with hyphens"),
        (("keys", "issue", "--external-id", f"{EXTERNAL_ID}\n"), "must be a UUID with hyphens"),
        (("keys", "issue", "--external-id", "acme"), "must be a UUID with hyphens"),
        ((*ISSUE, "--label", "a\tb"), "must be printable text on one line"),
        ((*ISSUE, "--label", "a\nb"), "must be printable text on one line"),
        ((*ISSUE, "--label", "\x1b[2J"), "must be printable text on one line"),
        ((*ISSUE, "--label", "\udcff"), "must be printable text on one line"),
        ((*ISSUE, "--expires-at", "tomorrow"), "must be an ISO 8601 time"),
        ((*ISSUE, "--expires-at", ""), "must be an ISO 8601 time"),
        ((*ISSUE, "--expires-at", "2099-02-30"), "must be an ISO 8601 time"),
        ((*ISSUE, "--expires-at", "2020-01-31"), "is in the past"),
        ((*ISSUE, "--expires-at", "2099-01-31T00:00:00"), "needs an offset from UTC"),
        ((*ISSUE, "--expires-at", "2020-01-31T00:00:00Z"), "is in the past"),
        ((*ISSUE, "--expires-at", "9999-12-31T23:59:59-14:00"), "is not between the years 1 and 9999"),
        ((*ISSUE, "--expires-at", "0001-01-01T00:00:00+14:00"), "is not between the years 1 and 9999"),
        (("keys", "revoke"), "required: KEY_ID"),
        (("keys", "issue", "--external-id", ""), "must be a UUID with hyphens"),
        (("keys", "list", "--external-id", ""), "must be a UUID with hyphens"),
        (("keys", "revoke", ""), "must be a UUID with hyphens"),
        (("keys", "rotate", ""), "must be a UUID with hyphens"),
        (("verify-key", "stackmgr_key"), "the key is read from standard input: give no arguments"),
        (("verify-key", "--key=stackmgr_key"), "read from standard input: give no arguments"),
        (("keys", "revoke", "1"), "must be a UUID with hyphens"),
        (("dev", "--port", "http"), "invalid int value"),
    ],
    ids=range(30),
)
def test_arguments_that_make_no_sense_are_rejected_with_the_usage(command, arguments, complaint):
    code, output, errors = command(*arguments)
    assert (code, output) == (2, "")
    assert errors.startswith("usage: stackmgr")
    assert complaint in errors
    assert "stackmgr_key" not in errors


@pytest.mark.parametrize(
    "arguments", [("migrate",), ("keys", "list"), ISSUE, ("keys", "revoke", EXTERNAL_ID)], ids=" ".join
)
@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (None, UNSET),
        ("", UNSET),
        (" ", INVALID),
        ("postgresql://operator:hunter2@hunter3@localhost/stackmgr", INVALID),
        ("host=localhost passwort=hunter2", INVALID),
        ("host=localhost password=hunter2\udcff", INVALID),
    ],
    ids=["unset", "empty", "blank", "bare at sign", "misspelt", "not UTF-8"],
)
def test_a_connection_string_that_cannot_be_used_is_named_but_not_shown(command, arguments, url, problem):
    code, output, errors = command(*arguments, url=url)
    # sys.exit() prints a text it is given and ends with status 1.
    assert code.startswith(f"stackmgr: {problem}")
    assert "hunter" not in code
    assert (output, errors) == ("", "")


@pytest.mark.parametrize("arguments", [(), ("dev",), ("migrate",), ("check",), ("keys",), ("keys", "issue")])
def test_every_command_explains_itself(command, arguments):
    code, output, errors = command(*arguments, "--help")
    assert (code, errors) == (0, "")
    assert output.startswith(" ".join(["usage: stackmgr", *arguments]))
