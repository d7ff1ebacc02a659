"""Crawls listed, looked at and steered over HTTP."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Iterator

import msgspec
import pytest
from command_line import Folder
from mixed_kinds import DONE_BY, MIXED, mix_kinds
from serving import Serving, serving

from shoal.crawl.record import record_of
from shoal.frontier import open_frontier
from shoal.model import Crawl
from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 60
CHANGES = 3


@pytest.fixture
def server(folder: Folder) -> Iterator[Serving]:
    with serving(folder) as running:
        yield running


def test_lists_crawls_with_counts_that_add_up(server: Serving, folder: Folder, site: SiteProcess) -> None:
    assert server.get("/crawls").json == {"crawls": [], "next": None}
    folder.run("run", folder.spider(site.url))
    (crawl,) = server.get("/crawls").json["crawls"]
    assert (crawl["id"], crawl["spider"], crawl["state"]) == ("books-1", "books", "finished")
    counts = crawl["counts"]
    assert counts["known"] == counts["done"] + counts["dead"] > PRODUCTS
    detail = server.get("/crawls/books-1").json
    assert detail["counts"] == counts
    assert sum(detail["outcomes"].values()) == counts["done"]
    assert detail["settings"]["pace"] == "fixed"
    assert detail["places"]["store"].endswith("shoal.db")


async def test_says_how_many_tasks_of_each_kind_wait_and_who_does_them(folder: Folder) -> None:
    await mix_kinds(folder.path)
    with serving(folder) as server:
        (listed,) = server.get("/crawls").json["crawls"]
        detail = server.get(f"/crawls/{MIXED}").json
        workers = server.get(f"/crawls/{MIXED}/workers").json["workers"]
    assert listed["kinds"] == detail["kinds"]
    assert detail["kinds"] == [
        {"kind": "http", "waiting": 3, "workers": 2},
        {"kind": "browser", "waiting": 2, "workers": 0},
        {"kind": "eu", "waiting": 1, "workers": 1},
    ]
    assert {row["worker"]: tuple(row["kinds"]) for row in workers} == DONE_BY


def test_a_crawl_of_one_kind_has_no_list_of_kinds(server: Serving, folder: Folder, site: SiteProcess) -> None:
    folder.run("run", folder.spider(site.url), "--max-pages", "1")
    assert server.get("/crawls/books-1").json["kinds"] == []


def test_pages_through_crawls(server: Serving, folder: Folder, site: SiteProcess) -> None:
    spider = folder.spider(site.url)
    for _ in range(3):
        folder.run("run", spider, "--again", "--max-pages", "1")
    first = server.get("/crawls?limit=2").json
    assert [crawl["id"] for crawl in first["crawls"]] == ["books-3", "books-2"]
    second = server.get(f"/crawls?limit=2&after={first['next']}").json
    assert [crawl["id"] for crawl in second["crawls"]] == ["books-1"]
    assert second["next"] is None
    assert server.get("/crawls?after=nonsense").status == 422


def test_pauses_resumes_cancels_and_deletes_a_crawl(server: Serving, folder: Folder, site: SiteProcess) -> None:
    with folder.start("run", folder.spider(site.url, rate="1/s")) as running:
        folder.wait_for_pages(1)
        assert server.post("/crawls/books-1/pause").json["state"] == "paused"
        assert server.get("/crawls/books-1").json["state"] == "paused"
        assert server.post("/crawls/books-1/resume").json["state"] == "running"
        refused = server.ask("DELETE", "/crawls/books-1")
        assert (refused.status, "is worked on" in refused.error) == (409, True)
        cancelled = server.post("/crawls/books-1/cancel").json
        assert (cancelled["state"], cancelled["counts"]["queued"]) == ("cancelled", 0)
        running.wait(60)
    assert server.ask("DELETE", "/crawls/books-1").status == 204
    assert server.get("/crawls/books-1").status == 404
    assert server.post("/crawls/books-1/pause").status == 404


def test_a_crawl_that_another_one_still_has_to_learn_from_is_not_deleted(
    server: Serving, folder: Folder, site: SiteProcess
) -> None:
    folder.run("run", folder.spider(site.url), "--max-pages", "1")

    async def begin_to_learn() -> None:
        frontier = await open_frontier(str(folder.path / "shoal.db"))
        (crawl,) = await frontier.crawls()
        settings = msgspec.to_builtins(msgspec.structs.replace(record_of(crawl), known_from=(crawl.id,)))
        await frontier.open_crawl(Crawl(id="books-2", spider="books", settings=settings))
        await frontier.close()

    asyncio.run(begin_to_learn())
    refused = server.ask("DELETE", "/crawls/books-1")
    assert (refused.status, "books-2 has just begun and still has to learn" in refused.error) == (409, True)


def test_sends_what_changes_while_a_crawl_runs(server: Serving, folder: Folder, site: SiteProcess) -> None:
    with folder.start("run", folder.spider(site.url, rate="2/s")) as running:
        folder.wait_for_pages(1)
        with server.events("?crawl=books-1") as events:
            done: list[int] = []
            names = set()
            is_slow = True
            for name, value in events:
                names.add(name)
                if name == "crawl":
                    done.append(value["counts"]["done"])
                    if is_slow and len(set(done)) >= CHANGES:
                        folder.hurry(site.url)
                        is_slow = False
                    if value["state"] == "finished":
                        break
        assert done == sorted(done)
        assert not is_slow
        assert names >= {"crawl", "crawls", "problems"}
        running.wait(60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ends_in_order_while_a_browser_watches(folder: Folder, number: int) -> None:
    with serving(folder) as server, server.events() as events:
        next(events)
        assert server.stop(number) == 0
        assert list(events) is not None


def test_a_taken_port_is_one_line(folder: Folder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} is in use" in folder.refusal("serve", "--port", str(port))


def test_probes_are_answered(server: Serving) -> None:
    assert server.get("/healthz", prefix="").json["ok"]
    assert server.get("/readyz", prefix="").json["ok"]
    assert server.get("/nothing").status == 404
    assert server.ask("PUT", "/crawls").status == 405
    assert server.get("/openapi.json").json["openapi"] == "3.1.0"


def test_asking_for_the_headers_of_the_stream_ends(server: Serving) -> None:
    assert server.ask("HEAD", "/events").headers["content-type"].startswith("text/event-stream")


def test_a_crawl_that_is_not_there_is_not_watched(server: Serving) -> None:
    assert server.get("/events?crawl=nothing-1").status == 404


def test_tells_scripts_its_url(folder: Folder) -> None:
    with folder.start("serve", "--port", "0", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["url"].startswith("http://127.0.0.1:")
        process.terminate()
        assert process.wait(60) == 0
