"""`shoal why` of a URL that several tasks have."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from command_line import Folder

from shoal.testing.sites.hostile import HostileSite, answer

SPIDER = """
from shoal import Item, Request, Spider

class Search(Spider):
    start = {start!r}
    rate = "unlimited"
    obey_robots = False
    allow_private = True
    max_attempts = 1

    def parse(self, page):
        if page.meta.get("bad"):
            raise ValueError("no results")
        yield Item(key=page.url)
        if page.task.method == "GET":
            for words in ("q=one", "q=bad"):
                yield Request(page.url, method="POST", body=words, meta={{"bad": "bad" in words}})
"""


async def test_why_tells_of_every_task_of_a_url(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    async with HostileSite() as site:
        site.pages = {"/search": answer(b"<p>found")}
        url = site.url("/search")
        (tmp_path / "search.py").write_text(SPIDER.format(start=url))
        await asyncio.to_thread(folder.run, "run", "search.py")
        assert len(site.requests) == 3
    text = folder.run("why", url).stdout
    assert "3 tasks have this URL in search-1; --method or --key shows one of them" in text
    rows = re.findall(r"^(GET|POST \d+ B \w{8})\s+direct\s+(\w{16})\s+(\w+)\s+(\w+)$", text, re.MULTILINE)
    states = sorted((request[:8], state, outcome) for request, _, state, outcome in rows)
    assert states == [("GET", "done", "ok"), ("POST 5 B", "dead", "handler"), ("POST 5 B", "done", "ok")]
    documents = folder.json("why", url)
    assert [fate["state"] for fate in documents].count("done") == 2
    assert folder.json("why", url, "--method", "get")["sentence"] == "done: ok"
    assert len(folder.json("why", url, "--method", "post")) == 2
    dead_key = next(key for _, key, state, _ in rows if state == "dead")
    told = folder.run("why", url, "--key", dead_key).stdout
    assert "dead after 1 attempt: handler: ValueError: no results" in told
    assert "q=bad" not in told.partition("Traceback")[0]
    assert f"dead requeue search-1 --key {dead_key}" in told
    assert "has no such task in search-1, only GET (key " in folder.refusal("why", url, "--method", "PUT")
    folder.run("dead", "requeue", "search-1", "--key", dead_key)
    waiting = folder.json("why", url, "--key", dead_key)
    assert (waiting["state"], waiting["request"][:8]) == ("queued", "POST 5 B")
    assert "is no key" in folder.refusal("why", url, "--key", "x")


FAILS_TWICE = """
from shoal import Item, Spider

class Shaky(Spider):
    start = {start!r}
    rate = "unlimited"
    obey_robots = False
    allow_private = True
    retry_seconds = 0.05
    attempts = 0

    def parse(self, page):
        self.attempts += 1
        if self.attempts < 3:
            raise ValueError(f"failure {{self.attempts}}")
        yield Item(key="the one", title="A")
        yield Item(key="the other", title="B")
"""


async def test_why_tells_of_every_attempt_and_of_the_items(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    async with HostileSite() as site:
        site.pages = {"/page": answer(b"<p>found")}
        url = site.url("/page")
        (tmp_path / "shaky.py").write_text(FAILS_TWICE.format(start=url))
        await asyncio.to_thread(folder.run, "run", "shaky.py")
    document = folder.json("why", url)
    attempts = [(line["attempt"], line["outcome"], line["status"]) for line in document["attempts"]]
    assert attempts == [(3, "ok", 200), (2, "handler", 200), (1, "handler", 200)]
    assert [line["error"][-9:] for line in document["attempts"]] == ["", "failure 2", "failure 1"]
    assert all(line["worker"] and line["exit"] == "direct" for line in document["attempts"])
    assert [(item["key"], item["data"]) for item in document["items"]] == [
        ("the one", {"title": "A"}),
        ("the other", {"title": "B"}),
    ]
    told = folder.run("why", url).stdout
    assert re.search(r"^ *1 .* handler +200 .* direct .* ValueError: failure 1$", told, re.MULTILINE)
    assert re.search(r"items\s+the one, 13 B\n\s+the other, 13 B\n", told)
