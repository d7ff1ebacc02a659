"""Schedules as people use them: `shoal serve` starts runs, each once, whoever is killed in between."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_line import Folder
from serving import Serving, serving

from shoal.crawl.record import record_of
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.model import Crawl, CrawlState
from shoal.testing.servers.http_receiver import http_receiver
from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import eventually, wait_until
from shoal.worker.workers import at_work

PRODUCTS = 20
NEVER = 'every = "3650d"'


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.full)])
def place(request: pytest.FixtureRequest) -> str:
    """The URL of a frontier."""
    return "shoal.db" if request.param == "sqlite" else request.getfixturevalue("redis").url


@pytest.fixture
def shop(folder: Folder, site: SiteProcess) -> Folder:
    """A folder with a fast spider and a slow one, and no schedule yet."""
    spiders = folder.path / "spiders"
    spiders.mkdir()
    for name, rate in (("books", "unlimited"), ("slow", "1/s")):
        folder.spider(site.url, rate=rate)
        text = (folder.path / "books.py").read_text().replace("class Books(", f"class {name.title()}(")
        (spiders / f"{name}.py").write_text(text)
    (folder.path / "books.py").unlink()
    return folder


def scheduled(folder: Folder, *keys: str, name: str = "often", spider: str = "books.py") -> None:
    """Write one schedule into shoal.toml."""
    text = "\n".join(["[[schedules]]", f'name = "{name}"', f'spider = "{spider}"', *keys])
    (folder.path / "shoal.toml").write_text(text + "\n")


def crawls(folder: Folder, place: str) -> list[Crawl]:
    """The crawls of a frontier, oldest first."""

    async def read() -> list[Crawl]:
        frontier = await open_frontier(str(folder.path / place) if "://" not in place else place)
        try:
            return (await frontier.crawls())[::-1]
        finally:
            await frontier.close()

    return asyncio.run(read())


async def _is_left(frontier: Frontier, crawl: str) -> bool:
    return not await at_work(crawl, frontier=frontier)


def end_all(folder: Folder, place: str) -> None:
    """Cancel what is not finished, and wait until nobody works any more."""

    async def end() -> None:
        frontier = await open_frontier(str(folder.path / place) if "://" not in place else place)
        for crawl in await frontier.crawls():
            if crawl.state is not CrawlState.FINISHED:
                await frontier.set_state(crawl.id, CrawlState.CANCELLED)
            await eventually(partial(_is_left, frontier, crawl.id))
        await frontier.close()

    asyncio.run(end())


def history(server: Serving, name: str = "often") -> list[dict[str, Any]]:
    """The lines of a schedule's history, newest first."""
    runs: list[dict[str, Any]] = server.get(f"/schedules/{name}/history").json["runs"]
    return runs


def state_of(server: Serving, crawl: str) -> str:
    return str(server.get(f"/crawls/{crawl}").json["state"])


def when_known(server: Serving, name: str = "often") -> None:
    """Wait until the coordinator has seen a schedule."""
    path = f"/schedules/{name}"
    wait_until(lambda: server.get(path).json["state"] == "waits", otherwise=f"nobody looks at {name}", pause=0.1)


def ended(server: Serving, number: int, name: str = "often") -> list[dict[str, Any]]:
    """The runs that ended, newest first, once there are so many of them."""

    def read() -> list[dict[str, Any]] | None:
        found = [
            line for line in history(server, name) if line["state"] in ("finished", "stopped", "failed", "cancelled")
        ]
        return found if len(found) >= number else None

    found = wait_until(read, otherwise=f"{number} runs never end", pause=0.2)
    assert found is not None
    return found


def test_an_interval_is_run_again_and_again_and_listed(shop: Folder) -> None:
    scheduled(shop, 'every = "2s"', "settings = { max_pages = 3 }")
    with serving(shop, "--spiders", "spiders") as server:
        lines = ended(server, 2)
        (shown,) = shop.json("schedule", "list")
        table = shop.run("schedule", "list").stdout
        runs = shop.run("schedule", "history", "often").stdout
        assert server.stop() == 0
    assert {line["state"] for line in lines} == {"finished"}
    assert lines[0]["due"] - lines[1]["due"] in (2.0, 4.0, 6.0, 8.0)
    assert all(line["due"] <= line["started"] <= line["ended"] for line in lines)
    assert (shown["name"], shown["origin"], shown["every"]) == ("often", "file", 2)
    assert "often" in table
    assert "every 2 s" in table
    assert "books-1" in runs
    first = crawls(shop, "shoal.db")[0]
    assert (first.id, record_of(first).settings.max_pages) == ("books-1", 3)
    assert record_of(first).scheduled[0].startswith("often@")


def test_a_run_that_is_stopped_has_ended_and_the_next_one_begins_anew(shop: Folder) -> None:
    scheduled(shop, 'every = "2s"', "settings = { max_items = 3, flush_pages = 1, concurrency = 1 }")
    with serving(shop, "--spiders", "spiders") as server:
        lines = ended(server, 2)
        assert server.stop() == 0
    assert {(line["state"], line["reason"]) for line in lines} == {("stopped", "max_items 3 reached")}
    assert len({line["crawl"] for line in lines}) == len(lines)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_whose_coordinator_is_killed_when_it_starts_it_is_made_once(shop: Folder, place: str, when: str) -> None:
    scheduled(shop, NEVER)
    program = [sys.executable, str(Path(__file__).parent / "dying_timekeeper.py"), place, "spiders", when]
    dead = subprocess.run(program, cwd=shop.path, timeout=60, check=False)
    assert dead.returncode == -signal.SIGKILL
    with serving(shop, "--spiders", "spiders", "--frontier", place) as server:
        (line,) = ended(server, 1)
        assert (line["state"], line["crawl"]) == ("finished", "books-1")
        # The process of the dead coordinator, where there is one, may be the one that ends last.
        end_all(shop, place)
        made = crawls(shop, place)
    assert [(crawl.id, record_of(crawl).scheduled) for crawl in made] == [("books-1", (line["run"],))]


def test_a_run_that_was_made_is_not_made_again_by_a_late_process(shop: Folder) -> None:
    command = ("run", "spiders/books.py", "--again", "--scheduled", "often@2026-01-01T00:00:00Z")
    assert shop.json(*command)["crawl"] == "books-1"
    assert shop.json(*command)["crawl"] == "books-1"
    assert shop.json("run", "spiders/books.py", "--again")["crawl"] == "books-2"
    assert len(crawls(shop, "shoal.db")) == 2


@pytest.mark.full
def test_of_two_coordinators_one_starts_each_run_also_when_one_is_killed(shop: Folder, place: str) -> None:
    scheduled(shop, 'every = "3s"', "settings = { max_pages = 2 }")
    options = ("--spiders", "spiders", "--frontier", place)
    with serving(shop, *options) as first, serving(shop, *options) as second:
        ended(second, 2)
        # The one that came first has the duty.
        assert first.stop(signal.SIGKILL) == -signal.SIGKILL
        before = len(ended(second, 2))
        lines = ended(second, before + 2)
        assert shop.run("schedule", "pause", "often", "--frontier", place).stdout == "often is paused\n"
        wait_until(lambda: second.get("/schedules/often").json["state"] == "paused", otherwise="it is not paused")
        wait_until(lambda: second.get("/schedules/often").json["current"] is None, otherwise="a run does not end")
        lines = history(second)
        end_all(shop, place)
        made = crawls(shop, place)
    runs = [run for crawl in made for run in record_of(crawl).scheduled]
    assert len(runs) == len(set(runs))
    assert sorted(runs) == sorted(line["run"] for line in lines if line["crawl"])
    # Every due time has its line, from the first to the last.
    dues = [line["due"] for line in lines]
    assert sum(line["number"] for line in lines) == (max(dues) - min(dues)) / 3 + 1


def test_skip_queue_and_cancel(shop: Folder) -> None:
    text = "\n".join(
        f'[[schedules]]\nname = "{overlap}"\nspider = "slow.py"\n{NEVER}\noverlap = "{overlap}"\n'
        for overlap in ("skip", "queue", "cancel")
    )
    (shop.path / "shoal.toml").write_text(text)
    with serving(shop, "--spiders", "spiders") as server:
        when_known(server, "skip")
        first = shop.run("schedule", "run", "skip").stdout
        assert first == "skip: slow-1 is running\n"
        # It is the same crawl that the other schedules would begin: they leave it alone.
        for name in ("skip", "cancel"):
            line = shop.run("schedule", "run", name, code=1).stdout
            assert line == f"{name}: its run is skipped: slow-1 is still going\n"
        assert shop.run("schedule", "run", "queue").stdout == "queue: its run is queued: slow-1 is still going\n"
        again = shop.run("schedule", "run", "queue", code=1).stdout
        assert again == "queue: its run is skipped: another run waits already\n"
        shop.run("cancel", "slow-1", "--yes")
        wait_until(lambda: history(server, "queue")[0]["crawl"] == "slow-2", otherwise="the queue does not move")
        shop.run("cancel", "slow-2", "--yes")
        wait_until(lambda: history(server, "queue")[0]["state"] == "cancelled", otherwise="the end is not seen")
        assert shop.run("schedule", "run", "cancel").stdout == "cancel: slow-3 is running\n"
        shop.run("schedule", "run", "cancel")
        wait_until(lambda: history(server, "cancel")[0]["crawl"] == "slow-4", otherwise="the next one does not start")
        assert state_of(server, "slow-3") == "cancelled"
        assert history(server, "cancel")[1]["reason"] == "the next run was due"
        end_all(shop, "shoal.db")


@pytest.mark.full
def test_two_schedules_of_one_spider_that_fall_due_together_run_one_after_the_other(shop: Folder) -> None:
    text = "\n".join(
        f'[[schedules]]\nname = "{name}"\nspider = "books.py"\n{NEVER}\noverlap = "queue"\n'
        f"settings = {{ max_pages = {pages} }}\n"
        for name, pages in (("one", 2), ("two", 3))
    )
    (shop.path / "shoal.toml").write_text(text)
    with serving(shop, "--spiders", "spiders") as server:
        when_known(server, "two")
        # Both are in the orders before the coordinator looks, most of the time.
        for name in ("one", "two"):
            assert server.post(f"/schedules/{name}/run").status == 202
        lines = [ended(server, 1, name)[0] for name in ("one", "two")]
    assert [line["state"] for line in lines] == ["finished", "finished"]
    made = crawls(shop, "shoal.db")
    assert [(crawl.id, len(record_of(crawl).scheduled)) for crawl in made] == [("books-1", 1), ("books-2", 1)]


def test_people_are_told_of_a_run_that_failed(shop: Folder) -> None:
    (shop.path / "spiders" / "bad.py").write_text("import nothing_of_this_name\n")
    scheduled(shop, NEVER, spider="bad.py")
    with http_receiver() as receiver:
        alerts = '[alerts]\nevery = "0.2s"\nhold = "0s"\nschedule_failed = true\n'
        target = f'[[alerts.to]]\nname = "ops"\nwebhook = "{receiver.url}"\n'
        with (shop.path / "shoal.toml").open("a") as config:
            config.write(alerts + target)
        with serving(shop, "--spiders", "spiders") as server:
            when_known(server)
            shop.run("schedule", "run", "often", code=1)
            wait_until(lambda: receiver.received, otherwise="nobody is told")
        told = json.loads(receiver.received[0].body)
    assert (told["alert"], told["about"], told["state"]) == ("schedule_failed", "often", "firing")
    assert "nothing_of_this_name" in told["text"]


@pytest.mark.full
def test_a_paused_crawl_is_not_resumed_by_a_schedule(shop: Folder) -> None:
    scheduled(shop, NEVER, spider="slow.py")
    with serving(shop, "--spiders", "spiders") as server:
        when_known(server)
        with shop.start("run", "spiders/slow.py") as by_hand:
            shop.wait_for_pages(1, crawl="slow-1")
            assert "slow-1 is still going" in shop.run("schedule", "run", "often", code=1).stdout
            by_hand.send_signal(signal.SIGINT)
            by_hand.wait(60)
        shop.run("pause", "slow-1")
        assert "slow-1 is paused" in shop.run("schedule", "run", "often", code=1).stdout
        assert state_of(server, "slow-1") == "paused"
        shop.run("resume", "slow-1")
        # Nobody works on it: the run resumes it, as a run by hand would.
        assert shop.run("schedule", "run", "often").stdout == "often: slow-1 is running\n"
        end_all(shop, "shoal.db")


def test_a_run_that_cannot_begin_has_its_reason_in_the_history(shop: Folder) -> None:
    (shop.path / "spiders" / "bad.py").write_text("import nothing_of_this_name\n")
    scheduled(shop, NEVER, spider="bad.py")
    with serving(shop, "--spiders", "spiders") as server:
        when_known(server)
        line = shop.run("schedule", "run", "often", code=1).stdout
        assert "nothing_of_this_name" in line
        (entry,) = shop.json("schedule", "history", "often")
        assert (entry["state"], entry["crawl"]) == ("failed", "")
        assert "nothing_of_this_name" in Path(entry["log"]).read_text()


def test_schedules_over_http(shop: Folder) -> None:
    scheduled(shop, NEVER)
    made = {"name": "made", "spider": "books.py", "cron": "30 6 * * *", "timezone": "Europe/Berlin", "jitter": "10m"}
    with serving(shop, "--spiders", "spiders") as server:
        assert server.post("/schedules", made).status == 201
        assert server.post("/schedules", made).status == 409
        assert server.post("/schedules", {**made, "name": "often"}).status == 409
        refused = server.post("/schedules", {**made, "name": "x", "cron": "30 25 * * *"})
        assert (refused.status, "'25' is no hour" in refused.error) == (422, True)
        assert "did you mean 'books.py'?" in server.post("/schedules", {**made, "name": "x", "spider": "book.py"}).error
        when_known(server, "made")
        found = server.get("/schedules").json
        assert [(one["name"], one["origin"]) for one in found["schedules"]] == [("made", "api"), ("often", "file")]
        assert found["is_run"] is True
        assert server.post("/schedules/made/pause").json["state"] == "paused"
        # It is not asked for in vain: what people want now is done.
        assert server.post("/schedules/made/run").status == 202
        assert ended(server, 1, "made")[0]["state"] == "finished"
        assert server.post("/schedules/made/resume").json["next_due"] is not None
        assert server.ask("DELETE", "/schedules/often").status == 409
        assert server.ask("DELETE", "/schedules/made").status == 204
        assert server.get("/schedules/made").status == 404
        assert server.post("/schedules/made/run").status == 404


@pytest.mark.full
def test_a_schedule_that_was_made_over_http_outlives_the_server(shop: Folder) -> None:
    with serving(shop, "--spiders", "spiders") as server:
        made = {"name": "made", "spider": "books.py", "every": "2s", "settings": {"max_pages": 2}}
        assert server.post("/schedules", made).status == 201
        server.stop()
    with serving(shop, "--spiders", "spiders") as server:
        assert ended(server, 1, "made")[0]["state"] == "finished"
        server.ask("DELETE", "/schedules/made")
        end_all(shop, "shoal.db")


def test_a_reader_may_look_and_not_change(shop: Folder) -> None:
    scheduled(shop, NEVER)
    environ = {"SHOAL_READER_TOKEN": "only-looks-0123456789"}
    with serving(shop, "--spiders", "spiders", token="may-do-all-0123456789", environ=environ) as server:
        server.token = "only-looks-0123456789"
        assert server.get("/schedules").status == 200
        for path in ("/schedules/often/run", "/schedules/often/pause", "/schedules"):
            assert server.post(path, {}).status == 403


def test_mistakes_are_refused_at_the_start_and_by_the_list(shop: Folder) -> None:
    scheduled(shop, 'evry = "1h"')
    for command in (("serve", "--port", "0", "--spiders", "spiders"), ("schedule", "list")):
        assert "unknown key 'evry'; did you mean 'every'?" in shop.refusal(*command)
    assert not (shop.path / "shoal.db").exists()
    scheduled(shop, NEVER, spider="boks.py")
    line = shop.refusal("serve", "--port", "0", "--spiders", "spiders")
    assert "[[schedules]] 'often': 'boks.py' is no spider" in line
    assert "did you mean 'books.py'?" in line
    scheduled(shop, NEVER)
    assert "--spiders FOLDER, or --no-schedules" in shop.refusal("serve", "--port", "0")


def test_without_a_coordinator_the_list_says_so_and_nothing_can_be_run(shop: Folder) -> None:
    scheduled(shop, NEVER)
    listed = shop.run("schedule", "list")
    assert "unknown" in listed.stdout
    assert "no `shoal serve --spiders FOLDER` is there" in listed.stderr
    assert not (shop.path / "shoal.db").exists()
    with serving(shop, "--no-schedules") as server:
        assert server.get("/schedules").json["is_run"] is False
        assert "no `shoal serve --spiders FOLDER` is there" in shop.refusal("schedule", "run", "often")
        assert json.loads(server.post("/schedules/often/run").body)["error"].startswith("no schedule is called")
        assert "did you mean 'often'?" in shop.refusal("schedule", "pause", "oftn")
