"""Start URLs leave a note of how they ended, other pages do not."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_journey import URL, ScriptedJourney, redirect

from shoal.fetch.base import Fault, FaultKind
from shoal.journey.notes import ENOUGH_LISTED
from shoal.journey.sitemaps import SITEMAP
from shoal.model import Released, Retry
from shoal.testing.fakes import Answer, lease_for, respond


async def notes(answer: Answer, *, task: dict[str, Any] | None = None, attempt: int = 4, **settings: Any) -> Any:
    journey = ScriptedJourney({URL: answer}, **settings)
    result = (await journey.take(lease_for(URL, task=task, attempt=attempt))).result
    assert not isinstance(result, Released)
    return {name: number for name, number in result.notes.items() if name.startswith("start")}


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        (respond(URL, "<p>good"), "start ok"),
        (respond(URL, status=404), "start failed http_404"),
        (respond(URL, status=500), "start failed http_500"),
        (Fault(kind=FaultKind.DNS, message="no such host"), "start failed dns"),
        (redirect("javascript:void(0)"), "start failed scheme"),
    ],
)
async def test_a_start_url_says_how_it_ended(answer: Answer, note: str) -> None:
    assert await notes(answer) == {note: 1}
    assert await notes(answer, task={"depth": 1}) == {}
    # A page that a sitemap lists is at depth 0: its sitemap leaves the word to it.
    assert await notes(answer, task={"parent": 5}) == {note: 1}


async def test_a_redirect_leaves_the_word_to_the_page_it_leads_to() -> None:
    assert await notes(redirect("/elsewhere")) == {}
    assert await notes(respond(URL, status=404), task={"parent": 5, "hops": 1}) == {"start failed http_404": 1}


async def test_a_status_that_the_spider_handles_is_no_failure() -> None:
    assert await notes(respond(URL, status=404), handle_statuses=(404,)) == {"start ok": 1}


async def test_a_start_url_that_is_tried_again_has_not_ended() -> None:
    journey = ScriptedJourney({URL: respond(URL, status=500)})
    result = (await journey.take(lease_for(URL))).result
    assert isinstance(result, Retry)
    assert result.notes == {}


async def test_a_start_url_that_robots_txt_keeps_out_has_failed() -> None:
    journey = await ScriptedJourney(needs_rules=True).with_rules(b"User-agent: *\nDisallow: /")
    result = (await journey.take(lease_for(URL))).result
    assert not isinstance(result, Released)
    assert result.notes == {"start failed robots": 1}


async def test_a_sitemap_without_a_url_that_can_be_read_has_failed() -> None:
    task = {"handler": SITEMAP, "meta": {"handler": "parse"}}
    broken, whole = "<!doctype html><p>sold", f"<urlset><url><loc>{URL}/a</loc></url></urlset>"
    assert await notes(respond(URL, broken), task=task) == {"start failed bad_sitemap": 1}
    assert await notes(respond(URL, "<urlset></urlset>"), task=task) == {"start ok": 1}
    # Its pages say whether they could be had.
    assert await notes(respond(URL, whole), task=task) == {}
    assert await notes(respond(URL, whole[:-5] + "<url><l"), task=task) == {}


async def test_few_of_the_pages_that_a_sitemap_lists_leave_a_note() -> None:
    journey = ScriptedJourney({URL: respond(URL, "<p>good")})
    noted = 0
    for _ in range(ENOUGH_LISTED + 5):
        result = (await journey.take(lease_for(URL, task={"parent": 5}))).result
        assert not isinstance(result, Released)
        noted += result.notes.get("start ok", 0)
    assert noted == ENOUGH_LISTED
