"""`stackmgr due`: the boundaries of each preset, as the specification's table defines them."""

import calendar
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackmgr.commands.due import next_boundary
from stackmgr.limits import PRESETS

# Hypothesis wants limits without a time zone.
EARLIEST, LATEST = (datetime.fromisoformat(text) for text in ("0001-01-02", "9998-12-31"))
TIMES = st.datetimes(EARLIEST, LATEST, timezones=st.just(UTC))


def is_boundary(preset: str, time: datetime) -> bool:
    """Whether *time* is a boundary, by the words of the specification."""
    if (time.minute, time.second, time.microsecond) != (0, 0, 0):
        return False
    midnight = time.hour == 0
    return {
        "hourly": True,
        "daily": midnight,
        "weekly": midnight and calendar.weekday(time.year, time.month, time.day) == calendar.MONDAY,
        "monthly": midnight and time.day == 1,
    }[preset]


CASES = [
    ("hourly", "2026-11-21T23:10:55+00:00", "2026-11-22T00:00:00"),
    ("hourly", "2026-12-31T23:59:59.999999+00:00", "2027-01-01T00:00:00"),
    ("hourly", "2026-11-21T23:00:00+00:00", "2026-11-22T00:00:00"),
    ("daily", "2026-11-21T00:00:00+00:00", "2026-11-22T00:00:00"),
    ("daily", "2028-02-28T12:00:00+00:00", "2028-02-29T00:00:00"),
    ("daily", "2027-02-28T12:00:00+00:00", "2027-03-01T00:00:00"),
    ("daily", "2100-02-28T12:00:00+00:00", "2100-03-01T00:00:00"),
    ("weekly", "2026-11-21T12:00:00+00:00", "2026-11-23T00:00:00"),
    ("weekly", "2026-11-23T00:00:00+00:00", "2026-11-30T00:00:00"),
    ("weekly", "2026-11-22T23:59:59.999999+00:00", "2026-11-23T00:00:00"),
    ("weekly", "2026-12-31T00:00:00+00:00", "2027-01-04T00:00:00"),
    ("monthly", "2026-12-01T00:00:00+00:00", "2027-01-01T00:00:00"),
    ("monthly", "2026-01-31T12:00:00+00:00", "2026-02-01T00:00:00"),
    ("monthly", "2028-02-29T23:00:00+00:00", "2028-03-01T00:00:00"),
    # In UTC it is still October, and Saturday.
    ("monthly", "2026-11-01T01:30:00+02:00", "2026-11-01T00:00:00"),
    ("weekly", "2026-11-22T23:30:00-02:00", "2026-11-30T00:00:00"),
]


@pytest.mark.parametrize(("preset", "after", "expected"), CASES)
def test_the_first_boundary_after_a_time(preset, after, expected):
    found = next_boundary(preset, datetime.fromisoformat(after))
    assert found == datetime.fromisoformat(expected).replace(tzinfo=UTC)


@given(preset=st.sampled_from(PRESETS), after=TIMES, offset=st.integers(-14, 14))
def test_the_next_boundary_is_one_strictly_later_and_none_lies_between(preset, after, offset):
    local = after.astimezone(timezone(timedelta(hours=offset)))
    found = next_boundary(preset, local)
    assert found > after
    assert is_boundary(preset, found)
    hour = after.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    while hour < found:
        assert not is_boundary(preset, hour)
        hour += timedelta(hours=1)


def test_the_command_prints_a_tab_separated_table_into_a_pipe_and_says_that_nothing_executes(command):
    ran = command("due", "monthly", "--from", "2027-12-31T23:59:59Z", "--count", "3")
    assert ran.status == 0
    assert ran.out == (
        "BOUNDARY\tWEEKDAY\n"
        "2028-01-01T00:00:00Z\tSaturday\n2028-02-01T00:00:00Z\tTuesday\n2028-03-01T00:00:00Z\tWednesday\n"
    )
    assert "executes nothing" in ran.err


def test_a_year_has_four_digits(command):
    ran = command("due", "monthly", "--from", "0999-11-30T00:00:00Z", "--count", "2", "--json")
    assert ran.json["after"] == "0999-11-30T00:00:00Z"
    assert ran.json["boundaries"] == ["0999-12-01T00:00:00Z", "1000-01-01T00:00:00Z"]


def test_the_command_prints_aligned_columns_on_a_terminal(command):
    ran = command("due", "monthly", "--from", "2027-12-31T23:59:59Z", "--count", "1", terminal=True)
    assert ran.out == "BOUNDARY              WEEKDAY\n2028-01-01T00:00:00Z  Saturday\n"


def test_the_command_prints_json(command):
    ran = command("due", "hourly", "--from", "2027-12-31T23:59:59Z", "--count", "1", "--json")
    assert ran.json == {
        "preset": "hourly",
        "after": "2027-12-31T23:59:59Z",
        "executes": False,
        "boundaries": ["2028-01-01T00:00:00Z"],
    }


def test_without_a_time_the_boundaries_are_in_the_future(command):
    before = datetime.now(UTC)
    (first, *_) = command("due", "hourly", "--json").json["boundaries"]
    assert before < datetime.fromisoformat(first) <= datetime.now(UTC) + timedelta(hours=1)


def test_boundaries_end_with_the_year_9999(command):
    ran = command("due", "monthly", "--from", "9999-11-30T00:00:00Z", "--json")
    assert ran.json["boundaries"] == ["9999-12-01T00:00:00Z"]
    ran = command("due", "monthly", "--from", "9999-12-01T00:00:00Z")
    assert ran.status == 1
    assert "no monthly boundary" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("yearly",),
        ("daily", "--from", "tomorrow"),
        ("daily", "--from", "2026-11-21T00:00:00"),
        ("daily", "--from", "0001-01-01T00:00:00+14:00"),
        ("daily", "--count", "0"),
        ("daily", "--count", "\u0663"),
        ("daily", "--count", "1001"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(command, arguments):
    ran = command("due", *arguments)
    assert ran.status == 2
    assert ran.out == ""
    assert "Traceback" not in ran.err
