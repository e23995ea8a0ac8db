"""Run a command of `stackmgr` inside this process, and keep what it prints and its exit status."""

import argparse
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from stackmgr import cli


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def runner(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], main: Callable[[], None] = cli.main
) -> Callable[..., Outcome]:
    """Return a function that runs *main* with arguments, *stdin* (Latin-1), and for a *terminal*."""

    def run(*arguments: object, stdin: str = "", terminal: bool = False) -> Outcome:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
        monkeypatch.setattr(sys, "argv", ["__main__.py", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode("latin-1"))))
        capsys.readouterr()
        status: Any = 0
        try:
            main()
        except SystemExit as ex:
            status = ex.code or 0
        printed = capsys.readouterr()
        message = f"{status}\n" if isinstance(status, str) else ""
        return Outcome(1 if message else status, printed.out, printed.err + message)

    return run


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    return dict(actions[0].choices) if actions else {}
