"""A crawl with something of everything, as people meet it in the middle of a day."""

from __future__ import annotations

import math
import time
from typing import Any

from stage import Stage

from shoal.duties.schedules.config import Schedule, Timing
from shoal.duties.schedules.orders import Notes, RunState, ScheduledRun, ScheduleState
from shoal.frontier.base import Frontier
from shoal.model import CrawlState, Point
from shoal.testing.clock import FakeClock

CRAWL = "shop-2"
SCHEDULE = "books-daily"
POINTS = 180
POINT_SECONDS = 20.0
HOSTS = ("shop.test", "books.shop.test", "cdn.shop.test", "old.shop.test")
TITLES = ("A Light in the Attic", "Tipping the Velvet", "Soumission", "Sharp Objects", "Sapiens", "The Requiem Red")


def furnish(stage: Stage) -> None:
    """Three crawls; `CRAWL` runs, has workers, hosts, items, dead letters, rejected URLs and an hour of history."""
    stage.crawl("shop-1", [_url(number) for number in range(120)])
    stage.work("shop-1", 120)
    # The call that finds nothing more ends the crawl.
    stage.work("shop-1", 1)
    stage.crawl(CRAWL, [_url(number) for number in range(2400)], rate="4/s")
    stage.work(
        CRAWL, 1000, rejected={"out_of_scope": 7, "robots": 2}, samples=[("out_of_scope", "https://elsewhere.test/a")]
    )
    stage.work(CRAWL, 60, outcome="http_404")
    stage.work(CRAWL, 24, dead="http_503", detail="503 Service Unavailable, 4 attempts")
    stage.work(
        CRAWL, 6, dead="handler", detail="Traceback (most recent call last):\n  books.py, line 14\nKeyError: 'price'"
    )
    stage.work(CRAWL, 40, retry="timeout")
    stage.crawl(CRAWL, rate="4/s", per_host=8)
    stage.store(CRAWL, [(f"sku-{n}", _url(n), _book(n)) for n in range(130)])
    now = time.time()
    stage.beat(CRAWL, "m2-4", pages=310, busy=0, seen=now - 900, pages_per_second=0.0)
    stage.beat(CRAWL, "m2-3", pages=640, busy=0, left=now - 1200, seen=now - 1200, pages_per_second=0.0)
    stage.beat(CRAWL, "m1-1", seen=now + 3600)
    stage.beat(CRAWL, "m1-2", seen=now + 3600, troubles=("the proxy dc/p3 is down",))
    clock = FakeClock(now - POINTS * POINT_SECONDS)
    stage.run(lambda frontier: _history(frontier, clock), clock=clock)
    stage.crawl("news-1", ["https://news.test/"], fed=False)
    stage.set_state("news-1", CrawlState.PAUSED)
    stage.schedules(_schedules(now))


def _url(number: int) -> str:
    return f"https://{HOSTS[number % len(HOSTS)]}/catalogue/{number}.html"


def _book(number: int) -> dict[str, object]:
    return {"title": TITLES[number % len(TITLES)], "price": f"£{20 + number % 40}.99", "in_stock": number % 3 > 0}


def _schedules(now: float) -> Notes:
    """One that waits, one that runs, one that is paused; runs of every kind."""
    weekdays = Timing(cron="30 6 * * mon-fri", timezone="Europe/Berlin", jitter=600.0)
    daily = Schedule(name=SCHEDULE, spider="books.py", timing=weekdays, overlap="queue", workers=4)
    often = Schedule(name="prices", spider="shop.py:Prices", timing=Timing(every=21_600))
    rare = Schedule(name="archive-monthly", spider="old.py", timing=Timing(cron="0 3 1 * *"), paused=True)
    day = 86_400
    missing = "books.py: no module named 'prices'"
    runs = (
        _run("1", now - 3 * day, "finished", crawl="shop-1", took=1000.0),
        _run("2", now - 2 * day, "skipped", number=3, reason="shop-1 is paused"),
        _run("3", now - day, "failed", took=90.0, reason=missing, log="shoal-logs/books-3.log"),
    )
    going = ScheduledRun(run="4", due=now - 4000, state="running", started=now - 3990, crawl=CRAWL)
    states = {
        SCHEDULE: ScheduleState(rhythm=daily.rhythm, passed=now, history=runs),
        "prices": ScheduleState(rhythm=often.rhythm, passed=now, current=going, history=runs[:1]),
        "archive-monthly": ScheduleState(rhythm=rare.rhythm, passed=now, paused=True),
    }
    return Notes(states=states, filed={one.name: one for one in (daily, often, rare)})


def _run(run: str, due: float, state: RunState, *, took: float = 0.0, **more: Any) -> ScheduledRun:
    return ScheduledRun(run=run, due=due, state=state, started=due if took else 0.0, ended=due + took, **more)


async def _history(frontier: Frontier, clock: FakeClock) -> None:
    """An hour, as if a coordinator had watched."""
    for index in range(POINTS):
        await frontier.keep_point(CRAWL, _point(index))
        clock.advance(POINT_SECONDS)


def _point(index: int) -> Point:
    pages = int(POINT_SECONDS * (14 * index + 60 * math.sin(index / 18)))
    errors = {"http_404": index * 6, "http_503": index * 2 + (index // 40) * 30, "timeout": index}
    shares = (0, 0, 0.05, 0.2, 0.35, 0.25, 0.1, 0.04, 0.01, 0, 0, 0)
    return Point(
        queued=9000 - 30 * index + int(800 * math.sin(index / 25)),
        delayed=40 + index % 30,
        leased=70 + int(30 * math.sin(index / 9)),
        done=pages,
        dead=errors["http_503"],
        retried=index * 3,
        lost=0,
        outcomes={"ok": pages, **errors},
        fetch_times=tuple(int(pages * share * (1 + 0.3 * math.sin(index / 12) * (share < 0.2))) for share in shares),
        received_bytes=pages * 48_000,
        workers=2,
        cost=0.0,
    )
