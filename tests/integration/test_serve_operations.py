"""Hosts, dead letters, items, URLs and starts over HTTP, on SQLite and on Redis."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Folder, is_alive
from serving import Answer, Serving, serving

from shoal.store import open_store
from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import wait_until

PRODUCTS = 60
GONE = """
from shoal import Spider

class Gone(Spider):
    start = [f"http://127.0.0.{n % 3 + 2}:9/page-{n}" for n in range(60)]
    rate = "unlimited"
    settings = {"allow_private": True, "max_attempts": 1, "obey_robots": False, "max_failures": "100%"}

    def parse(self, page):
        yield {"never": True}
"""


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.full)])
def frontier(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The option that names a frontier."""
    return () if request.param == "sqlite" else ("--frontier", request.getfixturevalue("redis").url)


@pytest.fixture
def server(folder: Folder, frontier: tuple[str, ...], site: SiteProcess) -> Iterator[Serving]:
    (folder.path / "spiders").mkdir()
    (folder.path / "spiders" / "gone.py").write_text(GONE)
    (folder.path / "spiders" / folder.spider(site.url)).write_text((folder.path / "books.py").read_text())
    with serving(folder, "--spiders", "spiders", *frontier) as running:
        yield running
    # What was started goes on by design, also without its frontier.
    for pid in running.started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def start(server: Serving, spider: str, **options: Any) -> dict[str, Any]:
    answer = server.post("/crawls", {"spider": spider, **options})
    assert answer.status == 201, answer.body
    started: dict[str, Any] = answer.json
    server.started.append(started["pid"])
    return started


def finished(server: Serving, crawl: str) -> dict[str, Any]:
    """The crawl, once it is finished and the processes that were started have ended: a worker that is about to leave
    would else work on what a test requeues or adds."""

    def read() -> dict[str, Any] | None:
        found: dict[str, Any] = server.get(f"/crawls/{crawl}").json
        return found if found["state"] == "finished" else None

    found = wait_until(read, otherwise=f"{crawl} does not finish", pause=0.1)
    wait_until(lambda: not any(map(is_alive, server.started)), otherwise="a run does not end", pause=0.1)
    return found  # type: ignore[return-value]  # it is not None


def pages(server: Serving, path: str, rows: str) -> list[Any]:
    """All pages of a list."""
    found: list[Any] = []
    mark = "&" if "?" in path else "?"
    after = ""
    while True:
        answer = server.get(f"{path}{mark}limit=7{after}")
        assert answer.status == 200, answer.body
        found += answer.json[rows]
        if (then := answer.json["next"]) is None:
            return found
        after = f"&after={then}"


def test_starts_a_spider_in_a_session_of_its_own(server: Serving) -> None:
    assert server.get("/status").json["spiders"] == ["books.py", "gone.py"]
    started = start(server, "books.py", settings={"max_pages": 30}, workers=2)
    assert (started["id"], started["spider"]) == ("books-1", "books")
    assert os.getsid(started["pid"]) == started["pid"]
    done = finished(server, "books-1")
    assert (done["counts"]["known"], done["settings"]["max_pages"]) == (30, 30)
    assert "books-1" in Path(started["log"]).read_text()
    again = server.post("/crawls/books-1/rerun")
    server.started.append(again.json["pid"])
    assert (again.status, again.json["id"]) == (201, "books-2")
    assert finished(server, "books-2")["settings"]["max_pages"] == 30


def test_a_crawl_outlives_the_server_that_started_it(folder: Folder, server: Serving) -> None:
    started = start(server, "books.py", settings={"rate": "1/s"})
    assert server.stop() == 0
    assert is_alive(started["pid"])
    os.killpg(started["pid"], signal.SIGKILL)


def test_arguments_of_a_spider_are_passed_on_and_kept_for_the_next_run(server: Serving, folder: Folder) -> None:
    named = (folder.path / "spiders" / "books.py").read_text().replace("    rate =", "    city = 'Bonn'\n    rate =")
    (folder.path / "spiders" / "named.py").write_text(named.replace("class Books", "class Named"))
    refused = server.post("/crawls", {"spider": "named.py", "arguments": {"ctiy": "x"}})
    assert (refused.status, "did you mean city?" in refused.error) == (422, True)
    start(server, "named.py", arguments={"city": "-a b"}, settings={"max_pages": 3})
    assert finished(server, "named-1")["arguments"] == {"city": "-a b"}
    server.started.append(server.post("/crawls/named-1/rerun").json["pid"])
    assert finished(server, "named-2")["arguments"] == {"city": "-a b"}


def test_a_spider_that_cannot_begin_is_told_in_one_line(server: Serving, folder: Folder) -> None:
    (folder.path / "spiders" / "typo.py").write_text("from shoal import Spidr\n")
    refused = server.post("/crawls", {"spider": "typo.py"})
    assert (refused.status, "Spidr" in refused.error) == (422, True)
    refused = server.post("/crawls", {"spider": "gone.py", "settings": {"max_page": 1}})
    assert (refused.status, "no setting 'max_page'" in refused.error) == (422, True)
    refused = server.post("/crawls", {"spider": "gone.py", "settings": {"max_pages": "many"}})
    assert (refused.status, "max_pages" in refused.error) == (422, True)


def test_dead_letters_are_paged_chosen_requeued_and_dropped(server: Serving) -> None:
    start(server, "gone.py")
    assert finished(server, "gone-1")["counts"]["dead"] == 60
    letters = pages(server, "/crawls/gone-1/dead", "letters")
    assert len({letter["key"] for letter in letters}) == len(letters) == 60
    assert [letter["at"] for letter in letters] == sorted((letter["at"] for letter in letters), reverse=True)
    of_host = pages(server, "/crawls/gone-1/dead?host=127.0.0.2:9&reason=connect", "letters")
    assert {letter["host"] for letter in of_host} == {"127.0.0.2:9"}
    assert len(of_host) == 20
    first = server.get("/crawls/gone-1/dead?host=127.0.0.2:9&reason=connect&limit=5").json
    second = server.get(f"/crawls/gone-1/dead?host=127.0.0.2:9&reason=connect&limit=5&after={first['next']}").json
    for page in (first, second):
        assert (page["total"], page["matching"], page["matching_is_least"]) == (60, 20, False)
    assert server.get("/crawls/gone-1/dead?limit=5").json["matching"] == 60
    assert server.get("/crawls/gone-1/dead?reason=http_503").json["letters"] == []
    assert server.post("/crawls/gone-1/dead/drop", {"key": letters[0]["key"]}).json == {"dropped": 1}
    assert server.post("/crawls/gone-1/dead/requeue", {"host": "127.0.0.2:9"}).json["requeued"] in (19, 20)
    assert server.post("/crawls/gone-1/dead/requeue", {"all": True}).json["requeued"] in (39, 40)
    assert server.get("/crawls/gone-1/dead").json["total"] == 0
    for nonsense in ({}, {"all": True, "reason": "x"}, {"key": letters[1]["key"], "reason": "x"}, {"key": "zz"}):
        assert server.post("/crawls/gone-1/dead/requeue", nonsense).status == 422


def test_hosts_are_paged_found_paced_blocked_and_boosted(server: Serving) -> None:
    start(server, "gone.py")
    finished(server, "gone-1")
    server.post("/crawls/gone-1/dead/requeue", {"all": True})
    hosts = pages(server, "/crawls/gone-1/hosts", "hosts")
    assert sorted(host["host"] for host in hosts) == ["127.0.0.2:9", "127.0.0.3:9", "127.0.0.4:9"]
    assert {host["waiting"] for host in hosts} == {20}
    (found,) = server.get("/crawls/gone-1/hosts?search=0.3").json["hosts"]
    assert found["host"] == "127.0.0.3:9"

    def put(change: dict[str, Any]) -> Answer:
        return server.ask("PUT", "/crawls/gone-1/hosts/127.0.0.3:9", body=change)

    paced = put({"rate": "30/m"}).json
    assert (paced["rate"], paced["why"]) == ("30/m", "its pace was changed by an operator")
    blocked = put({"blocked": True}).json
    assert (blocked["blocked"], blocked["why"], blocked["rate"]) == (True, "blocked by an operator", "30/m")
    assert put({"blocked": False}).json["blocked"] is False
    assert put({"rate": "fast"}).status == 422
    assert put({"rate": "1/s", "blocked": True}).status == 422
    assert server.ask("PUT", "/crawls/gone-1/hosts/no%20host", body={"boost": True}).status == 422


class Busy(http.server.BaseHTTPRequestHandler):
    """A site that asks everybody to wait."""

    def do_GET(self) -> None:
        self.send_response(429)
        self.send_header("Retry-After", "600")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def busy_site() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{site.server_port}/"
        site.shutdown()
        thread.join()


def test_a_host_that_rests_says_why_and_until_when(server: Serving, folder: Folder, busy_site: str) -> None:
    gone = GONE.replace('f"http://127.0.0.{n % 3 + 2}:9/page-{n}"', f'"{busy_site}%d?token=secret" % n')
    (folder.path / "spiders" / "busy.py").write_text(gone.replace("class Gone", "class Busy"))
    start(server, "busy.py", settings={"rate": "2/s"})

    def resting() -> dict[str, Any] | None:
        hosts: list[dict[str, Any]] = server.get("/crawls/busy-1/hosts").json["hosts"]
        return next((host for host in hosts if host["resting"]), None)

    host = wait_until(resting, otherwise="the host does not rest", pause=0.1)
    assert host is not None
    assert re.fullmatch(
        r"429, asked to wait 600 s \(Retry-After\); rests until (\d{4}-\d\d-\d\d )?\d\d:\d\d(:\d\d)?", host["why"]
    )


def test_a_boosted_host_goes_four_times_as_fast(server: Serving) -> None:
    start(server, "gone.py", settings={"rate": "1/s", "max_pages": 1})
    finished(server, "gone-1")
    server.post("/crawls/gone-1/dead/requeue", {"all": True})
    path = "/crawls/gone-1/hosts/127.0.0.2:9"
    boosted = server.ask("PUT", path, body={"boost": True}).json
    assert (boosted["rate"], boosted["boosted"]) == ("4/s", True)
    assert boosted["why"] == "boosted by an operator"
    back = server.ask("PUT", path, body={"boost": False}).json
    assert (back["rate"], back["boosted"], back["why"]) == ("1/s", False, "")


def test_items_come_newest_first_and_can_be_searched(server: Serving) -> None:
    start(server, "books.py")
    finished(server, "books-1")
    items = pages(server, "/crawls/books-1/items", "items")
    assert len({item["key"] for item in items}) == len(items) == PRODUCTS
    one = items[7]
    found = pages(server, f"/crawls/books-1/items?search={one['key'].upper()}", "items")
    assert [item["key"] for item in found] == [one["key"]]
    assert found[0]["data"]["title"] == one["data"]["title"]
    assert server.get(f"/crawls/books-1/items?since={one['last_seen'] + 1e6}").json["items"] == []


def test_an_item_that_is_gone_says_since_when(server: Serving, folder: Folder) -> None:
    async def mark_gone() -> None:
        store = await open_store(str(folder.path / "shoal.db"))
        await store.mark_gone("books", at=time.time() + 60, unseen_since=time.time() + 60)
        await store.close()

    start(server, "books.py")
    finished(server, "books-1")
    assert {item["gone_at"] for item in server.get("/crawls/books-1/items").json["items"]} == {None}
    asyncio.run(mark_gone())
    for item in server.get("/crawls/books-1/items").json["items"]:
        assert item["gone_at"] > item["last_seen"]


def test_tells_what_became_of_a_url_and_who_worked(server: Serving, site: SiteProcess) -> None:
    start(server, "books.py")
    detail = finished(server, "books-1")
    (fate,) = server.get(f"/crawls/books-1/why?url={site.url}catalogue/page-1.html").json["fates"]
    assert (fate["state"], fate["sentence"]) == ("done", "done: ok")
    assert fate["key"] == fate["fetch"]["key"] == fate["attempts"][0]["key"]
    assert len(fate["key"]) == 16
    assert server.get("/crawls/books-1/why?url=nonsense").status == 422
    (worker,) = server.get("/crawls/books-1/workers").json["workers"]
    assert (worker["state"], worker["pages"]) == ("left", detail["counts"]["done"])
    reasons = {row["reason"]: row["count"] for row in server.get("/crawls/books-1/rejected").json["reasons"]}
    assert reasons == detail["rejected"]
    assert server.get("/crawls/books-1/exits").json == {"exits": [], "next": None, "offers": []}
    assert server.get("/crawls/books-1/history?seconds=600").status == 200
    refused = server.get(f"/crawls/books-1/page?key={fate['key']}")
    assert (refused.status, "no archived page" in refused.error) == (404, True)


def test_takes_urls_line_by_line_and_says_what_became_of_them(server: Serving) -> None:
    start(server, "gone.py", settings={"max_pages": 100_000})
    finished(server, "gone-1")
    lines = "".join(f"http://127.0.0.9:9/{number}\n" for number in range(2500))
    text = f"# a comment\n{lines}\nhttp://127.0.0.9:9/0\nno url\n".encode()
    taken = server.post("/crawls/gone-1/urls", text, headers={"Content-Type": "text/plain"}).json
    assert taken == {"taken": 2502, "new": 2500, "duplicates": 1, "rejected": {"invalid_url": 1}, "error": ""}
    body = b'{"url": "http://127.0.0.8:9/a", "priority": 5, "handler": "parse"}\n{"url": "http://127.0.0.8:9/b"}'
    headers = {"Content-Type": "application/x-ndjson"}
    assert server.post("/crawls/gone-1/urls", body, headers=headers).json["new"] == 2
    wrong = server.post("/crawls/gone-1/urls", body + b'\n{"nothing": 1}\n', headers=headers)
    assert (wrong.status, "line 3" in wrong.error) == (422, True)
    assert server.post("/crawls/gone-1/urls", body, headers={"Content-Type": "text/html"}).status == 415
    endless = b"http://127.0.0.9:9/" + b"x" * 100_000
    assert server.post("/crawls/gone-1/urls", endless, headers={"Content-Type": "text/plain"}).status == 413


def test_says_where_to_go_on_when_enough_tasks_wait(server: Serving) -> None:
    start(server, "gone.py", settings={"max_pending": 100, "max_pages": 100_000})
    finished(server, "gone-1")
    text = "".join(f"http://127.0.0.9:9/{number}\n" for number in range(1200)).encode()
    answer = server.post("/crawls/gone-1/urls", text, headers={"Content-Type": "text/plain"})
    assert (answer.status, answer.headers["retry-after"], answer.json["taken"]) == (429, "10", 500)
    assert "from line 501 on" in answer.json["error"]


def test_an_archived_page_is_a_text_to_be_saved(folder: Folder, site: SiteProcess) -> None:
    folder.run("run", folder.spider(site.url), "--archive", "raw", "--max-pages", "3")
    with serving(folder) as server:
        (fate,) = server.get(f"/crawls/books-1/why?url={site.url}catalogue/page-1.html").json["fates"]
        answer = server.get(f"/crawls/books-1/page?key={fate['key']}")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert answer.headers["content-disposition"] == 'attachment; filename="page.txt"'
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert b"<html" in answer.body


def test_the_document_in_the_docs_is_the_one_that_is_served(server: Serving) -> None:
    kept = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"
    assert server.get("/openapi.json").json == json.loads(kept.read_text())


def test_keeps_the_history_of_a_crawl_without_a_coordinator(server: Serving, folder: Folder) -> None:
    started = start(server, "books.py", settings={"rate": "1/s"})
    # A start is answered when the crawl has begun: its first URL may be fed later.
    wait_until(lambda: server.get("/crawls/books-1").json["counts"]["known"], otherwise="no URL is fed", pause=0.1)
    os.killpg(started["pid"], signal.SIGKILL)
    wait_until(lambda: not is_alive(started["pid"]), otherwise="the coordinator lives on")
    killed = time.time()

    def read() -> Any:
        points = server.get("/crawls/books-1/history?seconds=600").json["points"]
        return [point for point in points if point["at"] > killed]

    points = wait_until(read, otherwise="no point is kept", pause=0.2)
    assert points[-1]["queued"] + points[-1]["leased"] + points[-1]["done"] + points[-1]["delayed"] >= 1
    with server.events("?crawl=books-1") as events:
        name, point = next(event for event in events if event[0] == "point")
    assert set(point) >= {"at", "queued", "outcomes", "fetch_times", "received_bytes", "workers", "cost"}
    assert name == "point"
