"""`stackmgr config`: the settings in effect, without their secrets."""

import argparse
import os
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from stackmgr import startup
from stackmgr.commands.command import EVERYTHING, Command
from stackmgr.commands.output import print_json, print_table
from stackmgr.settings import OPTIONS, Option, Secret

_REDACTED = "[redacted]"


def _shown(option: Option, value: Any) -> str | None:
    if not isinstance(value, Secret):
        return None if value is None else str(value)
    if option is not OPTIONS["database_url"]:
        return _REDACTED if value else None
    given = conninfo_to_dict(value)
    hidden = {name: _REDACTED for name in given if "password" in name}
    return make_conninfo("", **(given | hidden))


def _config(arguments: argparse.Namespace) -> None:
    chosen = startup.prepare(os.environ).settings
    shown: list[dict[str, Any]] = [
        {
            "variable": option.variable,
            "value": _shown(option, getattr(chosen, name)),
            "is_default": getattr(chosen, name) == option.default,
            "description": option.description,
        }
        for name, option in OPTIONS.items()
    ]
    if arguments.json:
        print_json(shown)
        return
    print_table(
        ("VARIABLE", "VALUE", "FROM"),
        [(each["variable"], each["value"], "default" if each["is_default"] else "set") for each in shown],
    )


COMMAND = Command(
    name="config",
    summary="print the settings in effect, without secrets",
    description="Check the environment and print the settings in effect. Secrets are redacted.",
    reads=EVERYTHING,
    run=_config,
)
