"""The page deploy/REFERENCE.md, made from the parser of the commands.

It does not use argparse's own text, which differs between versions of Python.  Written by:

    python -m tests.support.command_reference > deploy/REFERENCE.md
"""

import argparse
import textwrap
from collections.abc import Iterator

from stackmgr import cli
from stackmgr.commands.common import subcommands

_WIDTH = 110
_GLUE = "\0"
_HEAD = """\
# Command reference

Made from the parser of the commands; a test compares. [COMMANDS.md](COMMANDS.md) shows them at work.

The environment: [README.md](../README.md#configuration). `stackmgr --version` prints the release.
Every command has `--help`. `--json` prints one JSON document.
"""


def leaves(
    parser: argparse.ArgumentParser, summary: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the summary and the parser of every command that has none below it."""
    below = [*subcommands(parser)]
    if not below:
        yield summary, parser
    for each, command in below:
        yield from leaves(command, each)


def arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]


def _name(action: argparse.Action) -> str:
    value = f"{{{','.join(action.choices)}}}" if action.choices else action.dest.upper()
    words = [*action.option_strings[-1:], action.metavar or value]
    return str(words[0] if action.nargs == 0 else " ".join(map(str, words)))


def _synopsis(parser: argparse.ArgumentParser) -> str:
    shown: dict[str, None] = {}
    alternatives = {
        id(action): group for group in parser._mutually_exclusive_groups for action in group._group_actions
    }
    for action in arguments(parser):
        group = alternatives.get(id(action))
        # Lines break between arguments, not inside them.
        text = (" | ".join(map(_name, group._group_actions)) if group else _name(action)).replace(" ", _GLUE)
        required = group.required if group else action.required and action.nargs != "?"
        shown[text if required and not group else f"({text})" if required else f"[{text}]"] = None
    return textwrap.fill(
        " ".join((parser.prog, *shown)),
        _WIDTH,
        initial_indent=" " * 4,
        subsequent_indent=" " * 8,
        break_on_hyphens=False,
    ).replace(_GLUE, " ")


def _section(summary: str, parser: argparse.ArgumentParser) -> str:
    listed = [
        f"- `{_name(action)}`: {action.help}"
        for action in arguments(parser)
        if action.help and action.dest != "json"
    ]
    description = parser.description or ""
    if description.lower() == f"{summary}.".lower():
        description = ""
    parts = [
        f"## {parser.prog}: {summary}",
        _synopsis(parser),
        description,
        "\n".join(listed),
        parser.epilog,
    ]
    return "\n\n".join(part for part in parts if part)


def reference() -> str:
    """Return the page."""
    sections = [_section(summary, parser) for summary, parser in leaves(cli._parser())]
    return "\n\n".join((_HEAD.rstrip(), *sections)) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
