"""The journey of one leased task that is redirected: what goes along, and where it may not lead."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_journey import URL, redirect, take

from shoal.model import Dead, Done, Task
from shoal.settings.table import Settings
from shoal.testing.fakes import respond
from shoal.urls.canonical import MOST_SPELLINGS, UrlRules


async def hop(location: str, status: int = 302, **task: Any) -> Task:
    """The task that a redirect leads to."""
    finished = await take(redirect(location, status), lease={"task": task})
    assert isinstance(finished.result, Done)
    [found] = finished.result.found
    return found


async def test_a_redirect_is_a_task_of_its_own_with_everything_but_its_key() -> None:
    fields = {"meta": {"a": 1}, "priority": 3, "max_attempts": 9, "kind": "browser"}
    found = await hop("/other?x=1", depth=2, handler="item", hops=1, **fields)
    assert (found.url, found.lane, found.depth, found.hops) == ("https://a.test/other?x=1", "a.test", 2, 2)
    assert found.handler == "item"
    assert {name: getattr(found, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("sent", "asked"),
    [
        (b"/caf\xc3\xa9?q=\xc3\xa9", "https://a.test/caf%C3%A9?q=%C3%A9"),
        (b"/caf\xe9", "https://a.test/caf%E9"),
        (b"https://b\xc3\xbccher.a.test/", "https://xn--bcher-kva.a.test/"),
    ],
)
async def test_a_redirect_with_raw_bytes_leads_where_browsers_go(sent: bytes, asked: str) -> None:
    finished = await take(redirect(sent.decode("latin-1")), allow=["a.test", ".a.test"])
    assert isinstance(finished.result, Done)
    assert [found.url for found in finished.result.found] == [asked]


async def test_a_redirect_is_logged_with_where_it_led() -> None:
    finished = await take(redirect("/other"))
    assert isinstance(finished.result, Done)
    assert finished.result.outcome == "redirected"
    assert finished.fetch is not None
    assert (finished.fetch.outcome, finished.fetch.final_url) == ("redirected", "https://a.test/other")


@pytest.mark.parametrize(
    ("status", "method", "expected"),
    [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (303, "PUT", "GET"),
        (303, "HEAD", "HEAD"),
        (307, "POST", "POST"),
        (308, "PUT", "PUT"),
    ],
)
async def test_the_method_after_a_redirect_is_that_of_browsers(status: int, method: str, expected: str) -> None:
    headers = {"Content-Type": "application/json", "X-A": "b"}
    found = await hop("/x", status, method=method, body=b"{}", headers=headers)
    keeps = expected == method and method != "HEAD"
    assert found.method == expected
    assert found.body == (b"{}" if keeps or method == "HEAD" else None)
    assert found.headers == (headers if expected == method else {"X-A": "b"})


@pytest.mark.parametrize(
    ("location", "keeps"),
    [
        ("/x", True),
        ("https://a.test/x", True),
        ("https://a.test:443/x", True),
        ("http://a.test/x", False),
        ("https://a.test:8443/x", False),
        ("https://b.test/x", False),
        ("//b.test/x", False),
        ("/\\b.test/x", False),
        ("\\\\b.test/x", False),
        ("https://a.test.evil.test/x", False),
    ],
)
async def test_secrets_do_not_follow_to_another_origin(location: str, keeps: bool) -> None:
    secrets = {"Authorization": "s", "COOKIE": "s", "X-Plain": "p"}
    found = await hop(location, headers=secrets)
    assert found.headers == (secrets if keeps else {"X-Plain": "p"})


async def test_a_start_url_may_lead_anywhere_other_pages_only_within_scope() -> None:
    assert (await hop("https://www.a.test/")).lane == "www.a.test"
    finished = await take(redirect("https://other.test/"), lease={"task": {"depth": 1}})
    assert isinstance(finished.result, Done)
    assert (finished.result.found, finished.result.rejected) == ([], {"out_of_scope": 1})
    assert finished.result.outcome == "redirected"


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("javascript:alert(1)", "scheme"),
        ("file:///etc/passwd", "scheme"),
        ("http://[bad", "invalid_url"),
        ("/" + "x" * 5000, "url_too_long"),
        ("/a/a/a/a/a", "path_repeats"),
        ("https://a.test@evil.test/x", "credentials"),
        ("https://user:hunter2@a.test/x", "credentials"),
    ],
)
async def test_a_redirect_to_what_no_rule_allows_is_named(location: str, reason: str) -> None:
    finished = await take(redirect(location))
    assert isinstance(finished.result, Done)
    assert (finished.result.found, finished.result.rejected) == ([], {reason: 1})
    assert "hunter2" not in repr((finished.result.samples, finished.fetch))
    assert finished.fetch is not None
    assert len(finished.fetch.final_url) <= 2048


async def test_redirects_that_never_end_are_dead() -> None:
    for location in (URL, "page", f"{URL}#part"):
        finished = await take(redirect(location))
        assert isinstance(finished.result, Dead)
        assert finished.result.reason == "redirect_loop: the page redirects to itself"
    finished = await take(redirect("/x"), lease={"task": {"hops": 10}})
    assert isinstance(finished.result, Dead)
    assert finished.result.reason.startswith("redirect_loop: more than 10")
    assert finished.fetch is not None
    assert finished.fetch.outcome == "redirect_loop"


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("https://a.test/page", "/page/"),
        ("https://a.test/page/", "/page"),
        ("https://a.test/list?q=a+b", "/list?q=a%20b"),
        ("https://a.test/list?f[a]=1", "/list?f%5Ba%5D=1"),
        ("https://a.test/page?utm_source=x", "/page"),
        ("https://a.test/page", "/page?utm_source=x"),
    ],
)
async def test_a_redirect_to_another_spelling_of_the_page_is_followed(url: str, location: str) -> None:
    key = UrlRules(Settings(same_page=("trailing_slash",))).key_of(url)
    rules: dict[str, Any] = {"same_page": ["trailing_slash"]}
    finished = await take(redirect(location, url=url), url=url, lease={"task": {"key": key}}, **rules)
    assert isinstance(finished.result, Done)
    [found] = finished.result.found
    assert (found.url, found.hops) == (f"https://a.test{location}", 1)
    assert found.key != key
    # To itself, and back again and again: neither goes on for ever.
    lease = {"task": {"key": found.key, "hops": 1}}
    again = await take(redirect(location, url=found.url), url=found.url, lease=lease, **rules)
    assert isinstance(again.result, Dead)
    assert again.result.reason == "redirect_loop: the page redirects to itself"
    visited = [url, found.url]
    while True:
        lease = {"task": {"key": found.key, "hops": found.hops}}
        back = await take(redirect(visited[-2], url=found.url), url=found.url, lease=lease, **rules)
        if not isinstance(back.result, Done):
            break
        [found] = back.result.found
        visited.append(found.url)
    assert isinstance(back.result, Dead)
    assert back.result.reason == "redirect_loop: the page redirects to itself"
    assert len(visited) == 1 + MOST_SPELLINGS


async def test_a_redirect_to_nowhere_is_skipped() -> None:
    finished = await take(respond(URL, status=302))
    assert isinstance(finished.result, Done)
    assert finished.result.outcome == "http_302"
