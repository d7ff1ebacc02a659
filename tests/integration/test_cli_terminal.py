"""What a terminal shows: nothing cut where it is narrow, no colours where none are wanted."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import msgspec
import pytest
from command_line import Folder

from shoal.crawl.record import CrawlRecord
from shoal.frontier import open_frontier
from shoal.model import Crawl, Dead, Done, ExitUse, Heartbeat, Pool
from shoal.settings.table import Settings
from shoal.testing.fakes import task_for
from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 30
NARROW = 50
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
MOVES = re.compile(r"\x1b[\[\]][0-9;?]*[A-Za-ln-z]")
LONG_HOST = "www.a-rather-long-name-of-a-host.example.com"
POOL = Pool(name="cheap", exits=("dc-1", "dc-2"), interval=0.0, cap=9, quarantine=3600.0, cost=0.001)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filled") / "shoal.db"
    asyncio.run(_fill(path))
    return path


@pytest.fixture
def wide(folder: Folder, filled: Path) -> Folder:
    """A folder with a crawl whose tables are wider than a narrow terminal, and a second crawl."""
    shutil.copy(filled, folder.path)
    # Workers that were seen when the file was made may be gone for the test.
    asyncio.run(_beat(folder.path / "shoal.db"))
    return folder


async def _fill(path: Path) -> None:
    frontier = await open_frontier(str(path))
    settings = msgspec.to_builtins(CrawlRecord(settings=Settings(), spider="wide.py"))
    wide = Crawl(id="wide-1", spider="wide", interval=3600.0, pools=(POOL,), settings=settings)
    try:
        await frontier.open_crawl(Crawl(id="other-1", spider="other", settings=settings))
        await frontier.open_crawl(wide)
        for host in (LONG_HOST, "b.test"):
            await frontier.put(wide.id, [task_for(f"https://{host}/{one}", lane=host) for one in range(1235)])
        via = [task_for(f"https://s.test/{one}", lane="s.test via cheap", pool="cheap") for one in range(4)]
        await frontier.put(wide.id, via)
        leases = (await frontier.lease([wide.id], 9, worker="w", seconds=3600.0, horizon=0.0)).leases
        use = ExitUse(size=2_000_000, elapsed=0.5)
        for lease in leases:
            reason = f"handler: ValueError: {lease.task.url} has no price"
            is_dead = lease.task.lane == LONG_HOST
            await frontier.settle([Dead(lease=lease, reason=reason) if is_dead else Done(lease=lease, exit=use)])
    finally:
        await frontier.close()


async def _beat(path: Path) -> None:
    frontier = await open_frontier(str(path))
    try:
        for name in ("some-machine:1234:1", "other:7:1"):
            await frontier.beat(
                Heartbeat(
                    worker=name,
                    crawl="wide-1",
                    host="h",
                    pid=1,
                    busy=20,
                    slots=32,
                    pages=123_456,
                    pages_per_second=61.5,
                    memory_bytes=123_456_789,
                    version="0.1.0",
                )
            )
    finally:
        await frontier.close()


SHOWN = {
    "status": ("crawl", "state", "done", "left", "dead", "wide-1", "other-1", "running", "2,468"),
    "status wide-1": ("in flight", "time left", "retries", "1,234", "123,456", "2, 40 of 64 slots busy", "1/h"),
    "top wide-1": ("in flight", "time left", "retries", "1,234", "123,456", "1/h", "q quits"),
    "dead list wide-1": ("url", "reason", "wide-1: 1 of 1 dead letter"),
    "dead list wide-1 -v": ("handler: ValueError", "attempts"),
    "exits wide-1": ("requests", "success", "100 %", "dc-1", "dc-2", "s.test", "cheap", "healthy"),
    "settings": ("max_segment_repeats", "default", "100000"),
    f"why https://{LONG_HOST}/0": (f"https://{LONG_HOST}/0", "dead after 1 attempt: handler: ValueError"),
}


@pytest.mark.parametrize("line", SHOWN)
def test_a_narrow_terminal_cuts_nothing(wide: Folder, line: str) -> None:
    keys = b"q" if line.startswith("top") else b""
    shown = MOVES.sub("", COLOURS.sub("", wide.on_terminal(*line.split(), columns=NARROW, keys=keys)))
    # The help of one setting has one of its own.
    assert shown.count("…") == (line == "settings")
    for words in SHOWN[line]:
        assert words in shown, f"{words!r} is not in\n{shown}"


@pytest.mark.parametrize("line", ["status", "status wide-1", "exits wide-1", "dead list wide-1", "settings"])
def test_rows_of_a_table_fit_into_a_narrow_terminal(wide: Folder, line: str) -> None:
    shown = COLOURS.sub("", wide.on_terminal(*line.split(), columns=NARROW))
    messages = ("no room for ", "to queue them again: ", "began ")
    too_long = [text for text in shown.splitlines() if len(text) > NARROW and not text.startswith(messages)]
    assert too_long == []


def test_the_live_display_shows_every_count_on_a_narrow_terminal(folder: Folder, site: SiteProcess) -> None:
    shown = folder.on_terminal("run", folder.spider(site.url), columns=NARROW)
    pictures = MOVES.sub("", COLOURS.sub("", shown))
    assert "…" not in pictures
    for name in ("done", "queued", "delayed", "in flight", "pages", "retries", "dead", "time left"):
        assert name in pictures
    assert re.search(r"books-1 finished: \d+ pages in ", pictures)


LOOKS = ["status", "status wide-1", "exits wide-1", "dead list wide-1", "dead list -v wide-1", "settings", "top wide-1"]


@pytest.mark.parametrize("line", LOOKS)
def test_there_are_no_colours_where_none_are_wanted(wide: Folder, line: str) -> None:
    keys = b"q" if line.startswith("top") else b""
    assert COLOURS.search(wide.on_terminal(*line.split(), keys=keys))
    assert not COLOURS.search(wide.on_terminal(*line.split(), environ={"NO_COLOR": "1"}, keys=keys))


def test_the_live_display_moves_the_cursor_and_has_no_colours_where_none_are_wanted(
    folder: Folder, site: SiteProcess
) -> None:
    name = folder.spider(site.url)
    shown = folder.on_terminal("run", name, environ={"NO_COLOR": "1"})
    assert MOVES.search(shown)
    assert not COLOURS.search(shown)
    assert COLOURS.search(folder.on_terminal("run", name, "--again"))


@pytest.mark.parametrize("line", LOOKS)
def test_a_terminal_that_can_only_print_gets_plain_lines(wide: Folder, line: str) -> None:
    assert "\x1b" not in wide.on_terminal(*line.split(), environ={"TERM": "dumb"})


@pytest.mark.parametrize("line", LOOKS)
def test_a_pipe_gets_plain_lines(wide: Folder, line: str) -> None:
    result = wide.run(*line.split())
    assert "\x1b" not in result.stdout + result.stderr


def test_colours_that_are_asked_for_do_not_make_a_pipe_a_terminal(
    wide: Folder, site: SiteProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = wide.run("dead", "list", "-v", "wide-1").stdout
    name = wide.spider(site.url)
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = wide.run("dead", "list", "-v", "wide-1").stdout
    assert COLOURS.search(coloured)
    assert COLOURS.sub("", coloured) == plain
    run = wide.run("run", name)
    assert not MOVES.search(run.stdout + run.stderr)
