"""Whether a crawl saw the whole site, so that items which it did not see are gone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.model import CrawlState, Progress
from shoal.policy.failures import why_not_whole

WHOLE = Progress(
    state=CrawlState.FINISHED,
    done=14,
    outcomes={"ok": 10, "redirected": 2, "http_404": 1, "robots": 1},
    rejected={"duplicate": 40, "out_of_scope": 3},
)


def test_a_crawl_that_handled_every_page_it_may_fetch_saw_the_whole_site() -> None:
    assert why_not_whole(WHOLE) == ""


def test_so_did_one_whose_pages_have_not_changed() -> None:
    assert why_not_whole(msgspec.structs.replace(WHOLE, outcomes={"not_modified": 10})) == ""


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"state": CrawlState.PAUSED}, "not finished, but paused"),
        ({"feeders_lost": 1}, "not fed to the end"),
        ({"dead": 2}, "2 pages not done"),
        ({"cancelled": 1}, "1 page not done"),
        ({"outcomes": {"ok": 10, "http_403": 3}}, "3 pages ended as http_403"),
        ({"rejected": {"max_pages": 1}}, "1 link kept out by max_pages"),
        ({"rejected": {"bad_sitemap": 1}}, "kept out by bad_sitemap"),
        ({"outcomes": {"http_404": 5}}, "it handled no page"),
    ],
)
def test_a_crawl_that_may_have_missed_items_says_why(fields: dict[str, Any], why: str) -> None:
    assert why in why_not_whole(msgspec.structs.replace(WHOLE, **fields))
