"""Arguments that `stackmgr` rejects before it uses the database, and the messages."""

import re
import signal

import pytest

from stackmgr import __main__, __version__, cli
from stackmgr.operate.command import print_note
from stackmgr.settings import OPTIONS
from tests.support.command_line import subcommands

EXTERNAL_ID = "0f0e0d0c-0b0a-4988-8776-655443322110"
ISSUE = ("keys", "issue", "--external-id", EXTERNAL_ID)
NO_UUID = "must be a UUID with hyphens"
UNSET = "STACKMGR_DATABASE_URL is not set: set it to a PostgreSQL connection string"
INVALID = "STACKMGR_DATABASE_URL is not a valid PostgreSQL connection string"
PARTS = [
    ("", ""), ("host=localhost passwort=", ""), ("host=localhost password=", "\udcff"),
    ("postgresql://operator:", "@hunter3@localhost/stackmgr"), ("postgresql://user:", "@host/db?nothing=1"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "complaint"), [
    ((), "required: COMMAND"), (("keys",), "required: COMMAND"),
    (("serve",), "invalid choice: 'serve'"),
    (("migrate", "now"), "unrecognized arguments: now"),
    (("keys", "issue"), "required: --external-id"),
    (("keys", "issue", "--external-id", EXTERNAL_ID.replace("-", "")), NO_UUID),
    (("keys", "issue", "--external-id", f"{{{EXTERNAL_ID}}}"), NO_UUID),
    (("keys", "issue", "--external-id", f"{EXTERNAL_ID}\n"), NO_UUID),
    (("keys", "issue", "--external-id", ""), NO_UUID),
    (("keys", "list", "--external-id", ""), NO_UUID), (("keys", "revoke", "1"), NO_UUID),
    (("keys", "revoke"), "required: KEY_ID"),
    ((*ISSUE, "--label", "a\tb"), "must be printable text on one line"),
    ((*ISSUE, "--label", "\x1b[2J"), "must be printable text on one line"),
    ((*ISSUE, "--label", "\udcff"), "must be printable text on one line"),
    ((*ISSUE, "--expires-at", "tomorrow"), "must be an ISO 8601 time"),
    ((*ISSUE, "--expires-at", "2099-02-30"), "must be an ISO 8601 time"),
    ((*ISSUE, "--expires-at", "2020-01-31"), "is in the past"),
    ((*ISSUE, "--expires-at", "2099-01-31T00:00:00"), "needs an offset from UTC"),
    ((*ISSUE, "--expires-at", "9999-12-31T23:59:59-14:00"), "is not between the years 1 and 9999"),
    ((*ISSUE, "--expires-at", "0001-01-01T00:00:00+14:00"), "is not between the years 1 and 9999"),
    ((*ISSUE, "--label", "x" * 201), "must have at most 200 characters"),
    *(((*ISSUE, "--quota", text), "must be N/SECONDS")
        for text in ("100", "0/10", "10/0", "10001/10", "10/86401", "\u0661/\u0661", "9" * 5000 + "/1")),
    *((("keys", "rotate", EXTERNAL_ID, "--overlap", text), "must be a whole number from 0 to 31622400")
        for text in ("-1", "1.5", "31622401", "9" * 5000)),
    (("verify-key", "stackmgr_key"), "the key is read from standard input: give no arguments"),
    (("verify-key", "--key=stackmgr_key"), "read from standard input: give no arguments"),
    *((("dev", f"--port={text}"), "must be a whole number from 1 to 65535")
        for text in ("http", "0", "65536", "-1")),
], ids=range(39))  # fmt: skip
def test_senseless_arguments_are_rejected(command, arguments, complaint):
    ran = command(*arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("usage: stackmgr")
    assert complaint in ran.err
    assert "stackmgr_key" not in ran.err


@pytest.mark.parametrize("arguments", [("migrate",), ISSUE], ids=" ".join)
@pytest.mark.parametrize(
    ("url", "problem"), [("", UNSET), *((f"{text}hunter2{end}", INVALID) for text, end in PARTS)], ids=ascii
)
def test_invalid_url_is_named_but_not_shown(command, arguments, url, problem, monkeypatch):
    monkeypatch.setenv("STACKMGR_DATABASE_URL", url)
    ran = command(*arguments)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith(f"stackmgr: {problem}")
    assert "hunter" not in ran.err


GROUPS = {(name,): parser for name, parser in subcommands(cli.make_parser()).items()}
LEAVES = {
    (*words, *second): leaf
    for words, parser in GROUPS.items()
    for second, leaf in {(name,): leaf for name, leaf in subcommands(parser).items()}.items()
    or [((), parser)]
}


@pytest.mark.parametrize("words", sorted({*GROUPS, *LEAVES}), ids=" ".join)
def test_help_is_complete(command, words):
    ran = command(*words, "--help")
    assert (ran.status, ran.err) == (0, "")
    text = " ".join(ran.out.split())
    assert text.startswith(" ".join(["usage: stackmgr", *words]))
    purpose = re.split(r"positional arguments:|options:", text)[0]
    assert re.search(r"\w\. $", purpose), purpose
    last = text.partition("options:")[2]
    assert "Exit status: 0 done, 1 the command could not run, 2 wrong usage" in last
    assert "Reads " in last.partition("Exit status: ")[2]
    options = [each for each in (LEAVES | GROUPS)[words]._actions if each.option_strings]
    assert [each.option_strings for each in options if not each.help] == []


def test_help_states_every_variable(command):
    assert command("--version").out == f"stackmgr {__version__}\n"
    shown = command("--help").out
    for option in OPTIONS.values():
        assert re.search(rf"{option.variable} .*\[{re.escape(option.default_text)}\]", shown)
        assert not option.is_secret or f"{option.variable}_FILE" in shown


def test_a_note_without_standard_error_is_none(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr", None)
    print_note("key id 1")
    assert capsys.readouterr().out == ""


def test_an_interrupt_that_is_ignored_stays_so(monkeypatch):
    found = []
    monkeypatch.setattr(cli, "main", lambda: found.append(signal.getsignal(signal.SIGINT)))
    for handler in (signal.SIG_IGN, signal.default_int_handler):
        previous = signal.signal(signal.SIGINT, handler)
        try:
            __main__.main()
        finally:
            signal.signal(signal.SIGINT, previous)
    assert found == [signal.SIG_IGN, signal.SIG_DFL]
