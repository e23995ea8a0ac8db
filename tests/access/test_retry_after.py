"""Retry-After as verifiers send it: seconds or a date; what is neither is no time at all."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from stackmgr.access.verifiers.remote import retry_after

TEXTS = {
    "0": 0, "17": 17, "007": 7, "Wed, 21 Oct 2015 07:28:00 GMT": 0,
    **dict.fromkeys(("", "soon", "-1", "1.5", "1e3", "17, 18", "\u0661\u0667", "1" * 5000, "17s")),
    "Wed, 99 Oct 2015 07:28:00 GMT": None,
    "Wed, 21 Oct 99999 07:28:00 GMT": None,
    "Wed, 21 Oct 2015 07:28:00 +99999999999999": None,
    "2015-10-21T07:28:00Z": None,
}  # fmt: skip


@pytest.mark.parametrize(("text", "seconds"), TEXTS.items())
def test_seconds_are_taken_and_a_date_that_has_passed_is_now(text, seconds):
    assert retry_after(text) == seconds


@pytest.mark.parametrize("ahead", [1, 90, 86400])
def test_a_date_with_or_without_a_zone_is_turned_into_whole_seconds_from_now(ahead):
    moment = datetime.now(UTC) + timedelta(seconds=ahead)
    for text in (format_datetime(moment, usegmt=True), format_datetime(moment.replace(tzinfo=None))):
        assert ahead - 2 <= retry_after(text) <= ahead
