"""What `shoal` logs: text as people know it, or JSON, one object a line, whoever writes it."""

from __future__ import annotations

import json
import signal
from collections import Counter
from typing import Any

import pytest
from command_line import Folder

from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import wait_for_line

PRODUCTS = 30
FORGED = '{"time": "x", "level": "error", "event": "forged"}'
LOGS = f"self.log.info('one\\n%s', page.url); self.log.warning('look', extra=dict(n=1)); print({FORGED!r})"


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_text_shows_warnings_of_the_spider_and_nothing_else_that_is_new(folder: Folder, site: SiteProcess) -> None:
    spider = folder.spider(site.url, first="if page.text('h1').endswith('7'): self.log.warning('a seven')")
    lines = folder.run("run", spider).stderr.splitlines()
    assert lines[0] == "beginning books-1 in shoal.db"
    # On a busy machine there may be lines of progress as well.
    logged = [line for line in lines[1:] if not line.startswith("books-1 running")]
    assert logged
    assert all("WARNING books: a seven url=http" in line for line in logged)


def test_v_shows_the_spiders_own_lines_and_events(folder: Folder, site: SiteProcess) -> None:
    text = folder.run("run", folder.spider(site.url, first=LOGS), "-v").stderr
    assert f"INFO books: one\\n{site.url}" in text
    assert "INFO worker started crawl=books-1" in text
    assert "page done" not in text


@pytest.mark.parametrize("workers", ["1", "2"])
def test_json_is_one_object_a_line_whoever_writes_it(folder: Folder, site: SiteProcess, workers: str) -> None:
    spider = folder.spider(site.url, first=LOGS, rate="2/s")
    options = ["--workers", workers, "--log-format", "json", "--log-level", "debug"]
    with folder.start("run", spider, *options) as running:
        assert running.stderr is not None
        assert running.stdout is not None
        # Slow until each worker has begun: the others would else have done everything.
        lines: list[str] = []
        while sum('"worker started"' in line for line in lines) < int(workers):
            lines.append(running.stderr.readline())
            assert lines[-1], "the run ended before its workers began"
        folder.hurry(site.url)
        found = objects("".join([*lines, *running.stderr]))
        shown = running.stdout.read()
        assert running.wait(60) == 0
    events = Counter(line["event"] for line in found)
    assert events["page done"] >= PRODUCTS
    assert (events["worker started"], events["worker left"]) == (int(workers), int(workers))
    assert (events["forged"], events["crawl finished"]) == (0, 1)
    assert {line["message"] for line in found if line["event"] == "message"} >= {FORGED}
    assert all(line.keys() >= {"time", "level", "event"} for line in found)
    pages = [line for line in found if line["event"] in ("page done", "spider")]
    assert all(line.keys() >= {"crawl", "worker", "key", "url", "host"} for line in pages)
    # A spider's line and the page's end can be joined.
    assert {line["key"] for line in pages if line["event"] == "spider"} <= {
        line["key"] for line in pages if line["event"] == "page done"
    }
    assert "finished" in shown


def test_an_error_is_an_object_too(folder: Folder) -> None:
    (line,) = objects(folder.run("run", "nothing.py", "--log-format", "json", code=2).stderr)
    assert (line["level"], line["event"]) == ("error", "message")
    assert "nothing.py" in line["message"]


def test_a_worker_tells_that_its_crawl_is_paused_and_resumed(folder: Folder, site: SiteProcess) -> None:
    # Slow: the crawl is not to end before it is paused.
    spider = folder.spider(site.url, rate="10/m")
    with folder.start("run", spider) as begun:
        folder.wait_for_pages(1)
        begun.send_signal(signal.SIGINT)
        begun.communicate()
    with folder.start("worker", spider, "--log-format", "json") as worker:
        wait_for_line(worker.stderr, '"worker started"')
        folder.run("pause", "books-1")
        wait_for_line(worker.stderr, '"crawl paused"')
        folder.run("resume", "books-1")
        wait_for_line(worker.stderr, '"crawl resumed"')
        worker.send_signal(signal.SIGTERM)
        _, rest = worker.communicate()
    assert "worker left" in {line["event"] for line in objects(rest)}


def test_lines_do_not_damage_the_live_display(folder: Folder, site: SiteProcess) -> None:
    text = folder.on_terminal("run", folder.spider(site.url, first="self.log.warning('look')"))
    assert text.count("WARNING books: look") == PRODUCTS
    assert "in flight" in text
