"""`--skip-known`: from which earlier crawls a new one learns what was done."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from shoal.crawl.known_pages import earlier_crawls
from shoal.crawl.record import CrawlRecord
from shoal.errors import UsageError
from shoal.model import Crawl, CrawlState
from shoal.settings.table import Settings

DAY = 86_400.0
DEFAULTS = Settings()


def made(
    number: int,
    *,
    keys: Literal["known", "dropped"] = "known",
    ends: float = 0.5,
    settings: Settings = DEFAULTS,
    **fields: Any,
) -> Crawl:
    """A crawl of a day, which ended in the evening."""
    record = CrawlRecord(settings=settings, spider="books.py", **fields)
    return Crawl(
        id=f"books-{number}", spider="books", state=CrawlState.FINISHED, created=number * DAY, keys=keys,
        finished=(number + ends) * DAY, settings=msgspec.to_builtins(record),
    )  # fmt: skip


def test_a_new_crawl_learns_from_those_that_no_newer_one_has_learnt_from() -> None:
    daily = [made(0), *(made(number, skips_known=True) for number in range(1, 5))]
    assert earlier_crawls(daily[::-1], DEFAULTS).known_from == ("books-4",)
    # One that has not learnt yet, and one that went on after the next had begun, say for themselves what they did.
    begun = made(5, skips_known=True, known_from=("books-4",))
    assert earlier_crawls([begun, *daily[::-1]], DEFAULTS).known_from == ("books-5", "books-4")
    late = made(3, ends=1.5, skips_known=True)
    assert earlier_crawls([daily[4], late, daily[2]], DEFAULTS).known_from == ("books-4", "books-3")
    assert earlier_crawls([made(1), made(0)], DEFAULTS).known_from == ("books-1", "books-0")


def test_keys_that_were_dropped_after_others_had_learnt_them_are_not_missing() -> None:
    dropped = [made(number, keys="dropped", skips_known=number > 0) for number in range(20)]
    newest = made(20, skips_known=True)
    assert earlier_crawls([newest, *dropped[::-1]], DEFAULTS) == (("books-20",), ())
    # The newest of them was without its keys when the next began.
    found = earlier_crawls([made(60, skips_known=True), *dropped[::-1]], DEFAULTS)
    assert found.known_from == ("books-60",)
    assert len(found.missing) == 20
    with pytest.raises(
        UsageError, match=r"the URLs of no earlier crawl are known: books-19 \(its URL keys were dropped"
    ):
        earlier_crawls(dropped[::-1], DEFAULTS)


def test_a_crawl_with_other_keys_is_missing_also_where_a_newer_one_skips() -> None:
    other = made(0, settings=Settings(strip_parameters=("ref",)))
    found = earlier_crawls([made(1, skips_known=True), other], DEFAULTS)
    assert found == (("books-1",), ("books-0 (strip_parameters has changed)",))
