"""What becomes of crawls that have ended, by the settings of their spider's newest crawl."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.crawl.record import CrawlRecord
from shoal.duties.clearing import Removal, removals
from shoal.model import Crawl, CrawlState
from shoal.settings.table import Settings

DAY = 86_400.0


def made(number: int, *, state: CrawlState = CrawlState.FINISHED, spider: str = "books", **fields: Any) -> Crawl:
    """A crawl of a day, which ended in the evening."""
    names = {"keep_crawls", "crawl_ttl", "known_ttl"}
    settings = Settings(**{name: fields.pop(name) for name in names & fields.keys()})
    keys = fields.pop("keys", "known")
    record = CrawlRecord(settings=settings, spider=fields.pop("reference", "books.py"), **fields)
    ended = None if state in (CrawlState.RUNNING, CrawlState.PAUSED) else (number + 0.5) * DAY
    return Crawl(
        id=f"{spider}-{number}", spider=spider, state=state, created=number * DAY, finished=ended, keys=keys,
        settings=msgspec.to_builtins(record),
    )  # fmt: skip


def removed(crawls: list[Crawl], *, at: float) -> list[str]:
    return [name for name, fate in removals(crawls).items() if fate.removed_at is not None and fate.removed_at <= at]


def test_the_newest_ended_crawls_stay_and_the_others_go_at_once() -> None:
    crawls = [made(number, keep_crawls=3, crawl_ttl="") for number in range(10)]
    assert removed(crawls, at=10 * DAY) == [f"books-{number}" for number in range(7)]
    assert removals(crawls)["books-0"].removed_by == "keep_crawls = 3"
    assert removals(crawls)["books-9"] == Removal(
        stays="newest of its spider", keys_dropped_at=23.5 * DAY, keys_dropped_by="known_ttl = 14d"
    )
    assert removals(crawls)["books-8"].stays == "no setting removes it"


def test_an_ended_crawl_goes_after_its_time_but_the_newest_stays() -> None:
    crawls = [made(number, crawl_ttl="30d") for number in range(3)]
    assert removed(crawls, at=30.4 * DAY) == []
    assert removed(crawls, at=30.6 * DAY) == ["books-0"]
    assert removed(crawls, at=1000 * DAY) == ["books-0", "books-1"]


def test_crawls_that_can_go_on_are_neither_removed_nor_counted() -> None:
    states = (CrawlState.RUNNING, CrawlState.PAUSED)
    crawls = [made(number, keep_crawls=1, crawl_ttl="1d", state=state) for number, state in enumerate(states)]
    crawls += [made(2, keep_crawls=1, crawl_ttl="1d"), made(3, keep_crawls=1, state=CrawlState.CANCELLED)]
    assert removed(crawls, at=1000 * DAY) == ["books-2"]
    assert removals(crawls)["books-1"] == Removal(stays="paused")


def test_a_crawl_that_was_stopped_has_ended_once_a_newer_one_has_begun() -> None:
    crawls = [made(number, keep_crawls=3, state=CrawlState.STOPPED) for number in range(6)]
    assert removed(crawls, at=5.6 * DAY) == ["books-0", "books-1"]
    assert removals(crawls)["books-4"].stays == "newest of its spider"
    assert removals(crawls)["books-5"] == Removal(stays="stopped")
    # What such a crawl needed goes, too.
    needs = made(6, keep_crawls=1, state=CrawlState.STOPPED, before=("books-4",))
    assert removals([*crawls, needs])["books-4"].stays == "books-6 needs it"
    assert "books-4" in removed([*crawls, needs, made(7, keep_crawls=1)], at=8 * DAY)


def test_a_state_that_this_rule_does_not_know_stays() -> None:
    crawl = msgspec.structs.replace(made(0, keep_crawls=1), state="of a later version")
    assert removed([crawl, made(1, keep_crawls=1), made(2, keep_crawls=1)], at=1000 * DAY) == ["books-1"]


def test_each_spider_has_its_own_and_so_has_each_file() -> None:
    crawls = [
        made(number, spider=spider, reference=reference, keep_crawls=1)
        for number, (spider, reference) in enumerate(
            [("books", "books.py"), ("news", "news.py"), ("books", "other/shop.py"), ("books", "/app/books.py:Books")]
        )
    ]
    assert removed(crawls, at=1000 * DAY) == ["books-0"]


def test_the_settings_of_the_newest_crawl_count() -> None:
    crawls = [made(number, keep_crawls=10) for number in range(4)]
    assert removed([*crawls, made(4, keep_crawls=0, crawl_ttl="", state=CrawlState.RUNNING)], at=1000 * DAY) == []
    running = made(4, keep_crawls=1, state=CrawlState.RUNNING)
    assert removed([*crawls, running], at=1000 * DAY) == ["books-0", "books-1", "books-2"]


def test_what_an_unfinished_crawl_needs_stays() -> None:
    crawls = [made(number, keep_crawls=1, known_ttl="1d") for number in range(4)]
    going = made(
        4, keep_crawls=1, known_ttl="1d", before=("books-0",), known_from=("books-1",), state=CrawlState.PAUSED
    )
    found = removals([*crawls, going])
    assert removed([*crawls, going], at=1000 * DAY) == ["books-2"]
    assert found["books-0"] == found["books-1"] == Removal(stays="books-4 needs it")
    ended = msgspec.structs.replace(going, state=CrawlState.FINISHED, finished=4.5 * DAY)
    assert removed([*crawls, ended], at=1000 * DAY) == ["books-0", "books-1", "books-2", "books-3"]


def test_keys_are_dropped_of_finished_crawls_alone() -> None:
    crawls = [
        made(0, known_ttl="2d"),
        made(1, state=CrawlState.CANCELLED, known_ttl="2d"),
        made(2, keys="dropped", known_ttl="2d"),
        made(3, known_ttl="2d"),
    ]
    assert [fate.keys_dropped_at for fate in removals(crawls).values()] == [2.5 * DAY, None, None, 5.5 * DAY]
    assert removals([made(0, known_ttl="")])["books-0"].keys_dropped_at is None


def test_the_newest_crawl_keeps_its_keys_where_each_crawl_skips_what_was_known() -> None:
    crawls = [made(number, known_ttl="2d", skips_known=True) for number in range(2)]
    assert [fate.keys_dropped_at for fate in removals(crawls).values()] == [2.5 * DAY, None]


def test_a_crawl_that_cannot_be_read_stays() -> None:
    crawls = [msgspec.structs.replace(made(0), refusal="of another version"), made(1), made(2, keep_crawls=1)]
    assert removed(crawls, at=1000 * DAY) == ["books-1"]
    assert removals(crawls)["books-0"] == Removal(stays="left alone")
