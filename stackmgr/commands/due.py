"""`stackmgr due`: the planned UTC boundaries of a preset.

A boundary is part of the configuration contract only.  Nothing executes: neither this service nor any other
that it describes runs at a boundary, and none that has passed is caught up with.
"""

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice

from stackmgr.commands.arguments import instant, whole_number
from stackmgr.commands.command import NOTHING, Command, argument
from stackmgr.commands.output import moment, print_json, print_note, print_table
from stackmgr.errors import CommandError
from stackmgr.limits import PRESETS

NOTICE = "These are planned boundaries. The service stores configuration and executes nothing."

_LARGEST_COUNT = 1000


def next_boundary(preset: str, after: datetime) -> datetime:
    """Return the first boundary of *preset* strictly after *after*, in UTC.

    Raises OverflowError after the last boundary of the year 9999.
    """
    hour = after.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    if preset == "hourly":
        return hour + timedelta(hours=1)
    day = hour.replace(hour=0)
    if preset == "daily":
        return day + timedelta(days=1)
    if preset == "weekly":
        return day + timedelta(days=7 - day.weekday())
    if preset != "monthly":
        raise ValueError(f"no boundaries are known for the preset {preset}")
    # The first of the month plus 31 days is in the next month, whatever the length of this one.
    return (day.replace(day=1) + timedelta(days=31)).replace(day=1)


def boundaries(preset: str, after: datetime) -> Iterator[datetime]:
    """Yield the boundaries of *preset* strictly after *after*, until the end of the year 9999."""
    while True:
        try:
            after = next_boundary(preset, after)
        except OverflowError:
            return
        yield after


def _due(arguments: argparse.Namespace) -> None:
    after = arguments.after or datetime.now(UTC)
    found = list(islice(boundaries(arguments.preset, after), arguments.count))
    if not found:
        raise CommandError(
            f"there is no {arguments.preset} boundary between {moment(after)} and the year 10000"
        )
    if arguments.json:
        document = {"preset": arguments.preset, "after": moment(after), "executes": False}
        print_json(document | {"boundaries": [moment(each) for each in found]})
        return
    print_table(("BOUNDARY", "WEEKDAY"), [(moment(each), f"{each:%A}") for each in found])
    print_note(NOTICE)


COMMAND = Command(
    name="due",
    summary="print the planned UTC boundaries of a preset",
    description="Print the planned UTC boundaries of a preset, the first one strictly after a time. A "
    "change of schedule selects the first future boundary of the new preset and creates no catch-up run. "
    f"{NOTICE}",
    reads=NOTHING,
    run=_due,
    arguments=[
        argument("preset", choices=PRESETS, metavar="PRESET", help=", ".join(PRESETS)),
        argument(
            "--from",
            type=instant,
            dest="after",
            metavar="TIME",
            help="ISO 8601 time with offset (default: now)",
        ),
        argument(
            "--count",
            type=whole_number(1, _LARGEST_COUNT),
            default=5,
            metavar="N",
            help=f"how many, 1 to {_LARGEST_COUNT} (default 5)",
        ),
    ],
)
