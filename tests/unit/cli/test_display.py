"""What status, top and the live display show of a crawl: slow hosts, workers, troubles, and never a password."""

from __future__ import annotations

import io
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from shoal.cli.display.next_commands import command as command_line
from shoal.cli.display.progress import Display, last_lane, line_of, picture
from shoal.cli.display.screen import Screen
from shoal.cli.display.tables import lane_rows, show_workers
from shoal.cli.status import View, document
from shoal.crawl.opening import Places
from shoal.crawl.places import ResultPlaces
from shoal.insight.bounds import CrawlReading, bound_of
from shoal.insight.stats import Meter, Snapshot
from shoal.model import Crawl, CrawlState, Heartbeat, LaneStatus, Progress
from shoal.policy.politeness import lent_interval
from shoal.text.secrets import masked
from shoal.worker.workers import Member, Presence


def reading(*lanes: LaneStatus, **counts: Any) -> Snapshot:
    crawl = Crawl(id="news-1", spider="news")
    progress = Progress(state=CrawlState.RUNNING, **counts)
    bound = bound_of(CrawlReading(crawl=crawl, progress=progress, lanes=lanes))
    return Meter().read(crawl, progress, lanes=lanes, workers=[], now=0.0, bound=bound)


def test_a_slow_host_is_named_with_the_time_it_needs() -> None:
    slow = LaneStatus(
        lane="example.com", waiting=73_800, in_flight=1, interval=lent_interval(2.0), cap=8, starts_in=1.0
    )
    quick = LaneStatus(lane="example.org", waiting=10, in_flight=1, interval=1.0, cap=8)
    assert last_lane(reading(slow, quick, queued=73_810)) == "example.com needs 1 d 17 h at 30/m"
    assert last_lane(reading(quick, queued=10)) == ""


def test_the_hosts_that_finish_last_are_named_even_if_others_have_more_waiting() -> None:
    lanes = [
        LaneStatus(lane=f"{name}.com", waiting=waiting, in_flight=1, interval=lent_interval(interval), cap=8)
        for name, waiting, interval in (("many", 9000, 0.01), ("slow", 100, 60.0), ("also", 80, 60.0), ("c", 9, 1.0))
    ]
    snapshot = reading(*lanes, queued=9189)
    assert last_lane(snapshot) == "slow.com needs 1 h 41 m at 1/m, also.com needs 1 h 20 m at 1/m"
    assert document(View(snapshot, 0, ResultPlaces(), []))["last_lanes"][:2] == [
        {"lane": "slow.com", "seconds": 6060.0},
        {"lane": "also.com", "seconds": 4848.0},
    ]
    assert [row[-1] for row in lane_rows(lanes)] == ["1 m 31 s", "1 h 41 m", "1 h 20 m", "9.1 s"]


def test_a_fleets_workers_are_shown_with_what_each_of_them_does(capsys: pytest.CaptureFixture[str]) -> None:
    beats = [
        Heartbeat(
            worker=f"{host}:7:1", crawl="c", host=host, pid=7, version="1.2", slots=32, busy=30, pages=pages,
            pages_per_second=pages / 60, memory_bytes=60_000_000,
        )
        for host, pages in (("one", 6000), ("two", 3000))
    ]  # fmt: skip
    crew = [Member(beat, Presence.WORKING) for beat in beats]
    crew.append(Member(replace(beats[0], worker="one:8:1", left=5.0), Presence.LEFT))
    crew.append(Member(replace(beats[1], worker="two:8:1", seen=1000.0), Presence.GONE))
    show_workers(crew, Screen(), now=1180.0)
    _, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split() for row in rows] == [
        ["one:7:1", "working", "6,000", "100/s", "30", "of", "32", "60.0", "MB", "one", "1.2"],
        ["two:7:1", "working", "3,000", "50.0/s", "30", "of", "32", "60.0", "MB", "two", "1.2"],
        ["one:8:1", "left", "6,000", "100/s", "one", "1.2"],
        ["two:8:1", "gone", "since", "3", "m", "00", "s", "3,000", "two", "1.2"],
    ]


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("redis://:secret@host:6379/0", "redis://:***@host:6379/0"),
        ("rediss://me:se@cret@host/0?shards=3", "rediss://me:***@host/0?shards=3"),
        ("unix:///run/redis.sock?db=1&password=secret", "unix:///run/redis.sock?db=1&password=***"),
        ("postgresql://me:se/cr?et@host/db?sslmode=require", "postgresql://me:***@host/db?sslmode=require"),
        ("postgresql:///db?user=me&sslpassword=secret&host=/run", "postgresql:///db?user=me&sslpassword=***&host=/run"),
        ("s3://bucket/x?SECRET_ACCESS_KEY=secret&region=eu", "s3://bucket/x?SECRET_ACCESS_KEY=***&region=eu"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("shoal.db", "shoal.db"),
    ],
)
def test_a_password_is_never_shown(url: str, seen: str) -> None:
    assert masked(url) == seen
    assert "secret" not in command_line("status", Places(frontier=url, store="shoal.db"))


def test_a_piped_progress_line_comes_at_most_every_five_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    snapshot = reading(done=7, queued=3)
    with Display.on(Screen(), clock=lambda: now[0]) as display:
        for now[0] in (0.0, 4.9, 5.1, 6.0, 10.0, 10.2):
            display.show(snapshot)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [line_of(snapshot)] * 2


def test_the_live_picture_shows_what_people_watch_for() -> None:
    console = Console(width=100, file=io.StringIO(), record=True, force_terminal=True)
    console.print(picture(reading(done=312, queued=1204, leased=24, retried=2, dead=1)))
    head, bar, names, values, bound = console.export_text().splitlines()
    assert head.split()[:2] == ["news-1", "running"]
    assert bar.split()[1:] == ["20", "%"]
    assert names.split() == ["done", "queued", "delayed", "in", "flight", "pages", "retries", "dead", "time", "left"]
    assert values.split()[:4] == ["312", "1,204", "0", "24"]
    assert bound.startswith("bound by workers: none")


def test_the_live_picture_shows_troubles_and_whose_pause_it_is() -> None:
    console = Console(width=100, file=io.StringIO(), record=True, force_terminal=True)
    down = "proxy ring/x is down: connection refused"
    beats = [
        Heartbeat(worker=name, crawl="news-1", host="h", pid=1, version="0", slots=4, troubles=(down,)) for name in "ab"
    ]
    crawl = Crawl(id="news-1", spider="news", settings={"priority": -2})
    progress = Progress(state=CrawlState.PAUSED, queued=3)
    bound = bound_of(CrawlReading(crawl=crawl, progress=progress, workers=beats))
    snapshot = Meter().read(crawl, progress, lanes=[], workers=beats, now=0.0, bound=bound)
    console.print(picture(snapshot))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert "priority -2" in lines
    assert "paused   by an operator; `shoal resume` lets it go on" in lines
    assert f"trouble  {down} (2 workers)" in lines
    assert line_of(snapshot).endswith(f"paused by an operator; `shoal resume` lets it go on, {down} (2 workers)")
