from __future__ import annotations

import msgspec
from crawl_surveys import beat

from shoal.insight.stats import KindShown, unserved_line
from shoal.model import Crawl

CRAWL = Crawl(id="books-1", spider="books", settings={"spider": "books.py"})
STARTED = "`shoal worker books.py --exits FILE`"


def line(*kinds: KindShown, offering: tuple[str, ...] = ()) -> str:
    worker = msgspec.structs.replace(beat(), kinds=("http", *offering))
    return unserved_line(kinds, CRAWL, [worker])


def test_a_region_that_nobody_offers_is_named_with_what_would_help() -> None:
    assert line(KindShown("http@eu", 3, 0)) == (
        "3 tasks wait for the region eu, and no worker offers an exit there:"
        f" {STARTED} does, where FILE has an exit of that region"
    )
    assert line(KindShown("http@eu", 1, 0)).startswith("1 task waits for the region eu, and no worker offers")


def test_a_misspelt_region_is_seen_beside_those_that_are_offered() -> None:
    said = line(KindShown("http@ue", 3, 0), offering=("http@us", "http@eu"))
    assert "wait for the region ue, and no worker offers an exit there, only in eu, us: `shoal worker" in said


def test_a_region_without_workers_of_the_kind_is_not_called_unoffered() -> None:
    said = line(KindShown("browser@eu", 3, 0), offering=("http@eu",))
    assert "wait for the region eu, and no worker of the kind browser offers an exit there: `shoal worker" in said
    assert "--exits FILE --kinds browser` does" in said
