"""When schedules fall due: over changes of the clocks, in leap years, and with the same jitter for everybody."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.duties.schedules.config import (
    Timing,
    check_cron,
    check_timezone,
    count_due,
    newest_due,
    next_due,
    start_of,
    written,
)
from shoal.errors import SettingError

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
YEAR = 365 * 86_400.0


def at(text: str) -> float:
    """A moment, written in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def due_times(cron: str, timezone: str, begin: str, end: str) -> list[str]:
    """The due times after one moment and not after another, as UTC has them; each is asked for by itself."""
    timing, moment, found = Timing(cron=cron, timezone=timezone), at(begin), []
    while (due := next_due(timing, after=moment)) is not None and due <= at(end):
        assert due > moment
        moment = due
        found.append(datetime.fromtimestamp(due, UTC).strftime("%d %H:%M"))
    return found


# Berlin: clocks go from 2:00 to 3:00 on 29 March 2026 (1:00 UTC), from 3:00 to 2:00 on 25 October 2026 (1:00 UTC).
# New York: from 2:00 to 3:00 on 8 March 2026 (7:00 UTC), from 2:00 to 1:00 on 1 November 2026 (6:00 UTC).
CHANGES = [
    # A time that is skipped: right after the change. The days around it are as always.
    ("30 2 * * *", BERLIN, "2026-03-27T12:00", "2026-03-30T12:00", ["28 01:30", "29 01:00", "30 00:30"]),
    ("30 2 * * *", NEW_YORK, "2026-03-06T12:00", "2026-03-09T12:00", ["07 07:30", "08 07:00", "09 06:30"]),
    # Two skipped times are one run.
    ("0,30 2 * * *", BERLIN, "2026-03-28T12:00", "2026-03-30T12:00", ["29 01:00", "30 00:00", "30 00:30"]),
    # A time that comes twice: once, the first time.
    ("30 2 * * *", BERLIN, "2026-10-23T12:00", "2026-10-26T12:00", ["24 00:30", "25 00:30", "26 01:30"]),
    ("30 1 * * *", NEW_YORK, "2026-10-30T12:00", "2026-11-02T12:00", ["31 05:30", "01 05:30", "02 06:30"]),
    # Every hour means every hour: 23 of them, 25 of them.
    ("0 * * * *", BERLIN, "2026-03-28T23:30", "2026-03-29T03:30", ["29 00:00", "29 01:00", "29 02:00", "29 03:00"]),
    ("0 * * * *", BERLIN, "2026-10-24T23:30", "2026-10-25T02:30", ["25 00:00", "25 01:00", "25 02:00"]),
    ("0 * * * *", NEW_YORK, "2026-11-01T04:30", "2026-11-01T07:30", ["01 05:00", "01 06:00", "01 07:00"]),
    ("*/30 2 * * *", BERLIN, "2026-10-24T12:00", "2026-10-25T12:00", ["25 00:00", "25 00:30", "25 01:00", "25 01:30"]),
    ("*/30 2 * * *", BERLIN, "2026-03-28T12:00", "2026-03-29T12:00", []),
    # A fixed time of the day stays where people have it.
    ("30 6 * * mon-fri", BERLIN, "2026-03-26T12:00", "2026-03-31T12:00", ["27 05:30", "30 04:30", "31 04:30"]),
    ("30 6 * * mon-fri", NEW_YORK, "2026-10-29T12:00", "2026-11-02T12:00", ["30 10:30", "02 11:30"]),
]


@pytest.mark.parametrize(("cron", "timezone", "begin", "end", "expected"), CHANGES)
def test_a_change_of_the_clocks(cron: str, timezone: str, begin: str, end: str, expected: list[str]) -> None:
    assert due_times(cron, timezone, begin, end) == expected


@pytest.mark.parametrize("minute", range(0, 180, 7))
def test_asking_within_the_hour_that_comes_twice_gives_no_time_again(minute: int) -> None:
    timing = Timing(cron="30 2 * * *", timezone=BERLIN)
    moment = at("2026-10-24T23:45") + minute * 60
    due = next_due(timing, after=moment)
    assert due == (at("2026-10-25T00:30") if moment < at("2026-10-25T00:30") else at("2026-10-26T01:30"))


def test_29_february_and_the_last_day() -> None:
    leap = Timing(cron="0 0 29 2 *")
    assert next_due(leap, after=at("2026-01-01")) == at("2028-02-29")
    assert next_due(leap, after=at("2096-03-01")) == at("2104-02-29")
    assert due_times("0 12 L * *", "UTC", "2028-01-15", "2028-05-01") == [
        "31 12:00",
        "29 12:00",
        "31 12:00",
        "30 12:00",
    ]


@pytest.mark.parametrize(("alias", "number"), [("@yearly", 1), ("@monthly", 12), ("@weekly", 52), ("@Daily", 365)])
def test_aliases(alias: str, number: int) -> None:
    check_cron(alias)
    assert count_due(Timing(cron=alias), after=at("2026-01-01") + 1, until=at("2026-01-01") + 1 + YEAR) == number


@pytest.mark.parametrize(
    ("cron", "named"),
    [
        ("61 * * * *", "'61' is no minute: write 0 to 59"),
        ("* 24 * * *", "'24' is no hour"),
        ("* * 0 * *", "'0' is no day of the month"),
        ("* * * 13 *", "'13' is no month"),
        ("* * * * mno", "'mno' is no day of the week: did you mean 'mon'?"),
        ("* * * * 1L/2", "'1L/2' is no day of the week"),
        ("* * * *", "4 fields, not five"),
        ("0 30 6 * * *", "6 fields, not five"),
        ("@dayly", "did you mean '@daily'?"),
        ("0 0 30 2 *", "'0 0 30 2 *'"),
        ("0 0 31 4,6 *", "never fall due"),
    ],
)
def test_refuses_what_is_no_cron_expression_and_names_the_field(cron: str, named: str) -> None:
    with pytest.raises(SettingError) as error:
        check_cron(cron)
    assert named in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "meant"), [("Europe/Belrin", "'Europe/Berlin'"), ("Europe", "there is no"), ("../UTC", "there is no")]
)
def test_refuses_a_time_zone_that_does_not_exist(name: str, meant: str) -> None:
    with pytest.raises(SettingError, match=meant):
        check_timezone(name)


def test_intervals_are_counted_from_1970() -> None:
    timing = Timing(every=6 * 3600)
    assert [next_due(timing, after=at(text)) for text in ("2026-01-01T05:59", "2026-01-01T06:00")] == [
        at("2026-01-01T06:00"),
        at("2026-01-01T12:00"),
    ]


def test_a_moment_is_written_as_the_time_zone_has_it() -> None:
    assert written(at("2026-10-25T00:30"), BERLIN) == "2026-10-25 02:30:00+02:00"
    assert written(at("2026-10-25T01:30"), BERLIN) == "2026-10-25 02:30:00+01:00"


TIMINGS = st.one_of(
    st.builds(Timing, every=st.integers(1, 700_000), jitter=st.floats(0, 5000)),
    st.builds(
        Timing,
        cron=st.sampled_from(
            ["30 2 * * *", "0,30 2 * * *", "*/7 * * * *", "0 * * * *", "0 0 29 2 *", "15 1-4 * * sun", "0 12 L * *"]
        ),
        timezone=st.sampled_from(["UTC", BERLIN, NEW_YORK, "Australia/Lord_Howe", "Africa/Cairo", "Asia/Kathmandu"]),
        jitter=st.floats(0, 100_000),
    ),
)
MOMENTS = st.floats(at("2020-01-01"), at("2030-01-01")) | st.integers(
    int(at("2026-10-24T22:00")), int(at("2026-10-25T04:00"))
).map(float)


@settings(deadline=None)
@given(TIMINGS, MOMENTS, st.floats(0, 40 * 86_400))
@example(Timing(cron="30 2 * * *", timezone=BERLIN), at("2026-10-25T00:45"), 86_400.0)
def test_newest_and_count_agree_with_counting_one_by_one(timing: Timing, begin: float, length: float) -> None:
    if timing.every and length / timing.every > 2000:
        length = timing.every * 2000.0
    one_by_one, moment = [], begin
    while len(one_by_one) < 2500 and (due := next_due(timing, after=moment)) is not None and due <= begin + length:
        assert due > moment
        one_by_one.append(due)
        moment = due
    until = begin + length if len(one_by_one) < 2500 else one_by_one[-1]
    assert newest_due(timing, after=begin, until=until) == (one_by_one[-1] if one_by_one else None)
    assert count_due(timing, after=begin, until=until, most=5000) == len(one_by_one)


@settings(deadline=None)
@given(TIMINGS, MOMENTS)
def test_jitter_keeps_the_order_and_is_the_same_for_everybody(timing: Timing, begin: float) -> None:
    due = [begin]
    while len(due) < 12 and (found := next_due(timing, after=due[-1])) is not None:
        due.append(found)
    starts = [start_of(timing, moment, name="books") for moment in due[1:]]
    assert starts == [start_of(timing, moment, name="books") for moment in due[1:]]
    for moment, start in zip(due[1:], starts, strict=True):
        assert moment <= start <= moment + timing.jitter
    for start, following in zip(starts, due[2:], strict=False):
        assert start <= following
    assert all(one <= other for one, other in pairwise(starts))


def test_jitter_spreads_schedules_that_fall_due_together() -> None:
    timing = Timing(cron="0 6 * * *", jitter=600.0)
    starts = {start_of(timing, at("2026-01-01T06:00"), name=f"s{number}") for number in range(50)}
    assert len(starts) == 50
    assert max(starts) - min(starts) > 300
