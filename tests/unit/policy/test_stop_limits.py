"""What stops a crawl: the limits that its settings ask for, and when a deadline is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec
import pytest

from shoal.errors import SettingError, UsageError
from shoal.model import Crawl, CrawlState, Limit, Progress
from shoal.policy.limits import limits_of, pages_per_write, raised, reached_by
from shoal.settings.layers import resolve
from shoal.settings.table import Settings
from shoal.settings.values import _no_zone, deadline_at, parse_deadline

BERLIN = ZoneInfo("Europe/Berlin")


def moment(text: str, zone: ZoneInfo = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "now", "at"),
    [
        ("06:00 Europe/Berlin", "2026-11-19 22:00", "2026-11-20 06:00"),
        ("06:00 Europe/Berlin", "2026-11-20 05:59", "2026-11-20 06:00"),
        ("06:00 Europe/Berlin", "2026-11-20 06:00", "2026-11-21 06:00"),
        ("06:00:30+01:00", "2026-11-20 06:00", "2026-11-20 06:00:30"),
        ("05:00Z", "2026-11-20 05:00", "2026-11-20 06:00"),
        ("2026-11-22 06:00 Europe/Berlin", "2026-11-20 05:00", "2026-11-22 06:00"),
        ("2026-11-19T06:00+01:00", "2026-11-20 05:00", "2026-11-19 06:00"),
        # The clocks go forward at 02:00 on 29 March 2026, back at 03:00 on 25 October.
        ("02:30 Europe/Berlin", "2026-03-28 22:00", "2026-03-29 03:30"),
        ("06:00 Europe/Berlin", "2026-03-28 22:00", "2026-03-29 06:00"),
        ("06:00 Europe/Berlin", "2026-10-24 22:00", "2026-10-25 06:00"),
    ],
)
def test_a_deadline_is_the_moment_that_it_names_or_the_next_one_of_its_time(text: str, now: str, at: str) -> None:
    assert deadline_at(text, now=moment(now)) == moment(at)


def test_a_deadline_without_a_zone_goes_by_the_clock_of_this_machine(in_tokyo: None) -> None:
    tokyo = ZoneInfo("Asia/Tokyo")
    assert deadline_at("06:00", now=moment("2026-11-20 22:00", tokyo)) == moment("2026-11-21 06:00", tokyo)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("6am", "'6am' is not understood: write it as 06:00"),
        ("25:00", "'25:00' is not understood"),
        ("2026-02-30 06:00", "is not understood: day is out of range"),
        ("06:00 Europe/Berln", "did you mean 'Europe/Berlin'"),
    ],
)
def test_a_deadline_that_is_none_is_refused_where_it_is_set(text: str, said: str) -> None:
    with pytest.raises(SettingError, match=said.replace("?", r"\?")):
        resolve([("test", {"deadline": text})])
    assert parse_deadline("") is None


def test_a_machine_without_time_zones_is_told_what_to_install() -> None:
    assert "install tzdata (apt or pip) for Europe/Berlin" in _no_zone("Europe/Berlin", [])


def test_the_limits_of_a_crawl_name_their_settings() -> None:
    settings = Settings(max_items=1000, max_bytes=5_000_000, max_seconds=90.5, deadline="06:00 Europe/Berlin")
    limits = limits_of(settings, now=moment("2026-11-19 22:00"))
    assert [limit.why for limit in limits] == [
        "max_items 1000 reached",
        "max_bytes 5000000 reached",
        "max_seconds 90.5 reached",
        "deadline 06:00 Europe/Berlin passed",
    ]
    assert limits_of(Settings(), now=0.0) == ()
    crawl = Crawl(id="c", spider="s", limits=limits)
    assert raised(crawl, Progress(state=CrawlState.STOPPED, ran=90.0, notes={"items": 999})) == {}
    # Beyond what was counted: else the crawl would be stopped again at once.
    far = Progress(state=CrawlState.STOPPED, ran=90.5, notes={"items": 1532, "bytes": 5_000_000})
    assert raised(crawl, far) == {"max_items": 3064, "max_bytes": 10_000_000, "max_seconds": 182.0}


def test_where_few_items_are_wanted_few_pages_wait_for_their_write() -> None:
    assert [pages_per_write(Settings(max_items=most)) for most in (0, 5, 100, 2000)] == [128, 1, 10, 128]


def test_no_crawl_begins_with_a_deadline_that_has_passed() -> None:
    settings, now = Settings(deadline="2026-11-19 06:00 Europe/Berlin"), moment("2026-11-19 06:00")
    with pytest.raises(UsageError, match="deadline 2026-11-19 06:00 Europe/Berlin has passed, no crawl can begin"):
        limits_of(settings, now=now)
    former = Crawl(id="c", spider="s", limits=limits_of(settings, now=now - 1))
    assert limits_of(settings, now=now, former=former) == former.limits


def test_a_crawl_whose_process_died_keeps_its_deadline_and_a_stopped_one_gets_the_next() -> None:
    settings = Settings(deadline="06:00 Europe/Berlin")
    former = Crawl(id="c", spider="s", limits=limits_of(settings, now=moment("2026-11-19 22:00")))
    later = moment("2026-11-20 06:01")
    assert limits_of(settings, now=later, former=former) == former.limits
    stopped = msgspec.structs.replace(former, state=CrawlState.STOPPED)
    assert limits_of(settings, now=later, former=stopped)[0].most == moment("2026-11-21 06:00")
    changed = limits_of(Settings(deadline="07:00 Europe/Berlin"), now=later, former=former)
    assert changed[0].most == moment("2026-11-20 07:00")


def test_a_limit_holds_for_a_crawl_with_work_left() -> None:
    limits = (
        Limit(of="note", note="items", most=5, why="max_items 5 reached"),
        Limit(of="ran", most=60.0, why="max_seconds 60 reached"),
        Limit(of="wall", most=1000.0, why="deadline 06:00 passed"),
    )
    crawl = Crawl(id="c", spider="s", limits=limits)

    def reached(now: float = 0.0, **fields: object) -> str:
        progress = msgspec.convert({"state": "stopped", "queued": 1, **fields}, Progress)
        limit = reached_by(crawl, progress, now=now)
        return "" if limit is None else limit.why

    assert reached() == reached(notes={"items": 4}, ran=59.9, now=999.9) == ""
    assert reached(notes={"items": 5}) == "max_items 5 reached"
    assert reached(ran=60.0) == "max_seconds 60 reached"
    assert reached(now=1000.0) == "deadline 06:00 passed"
    assert reached(now=1000.0, queued=0) == ""
