"""`shoal diff`: items that are new, changed or gone, between two runs or two times."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from command_line import Folder

from shoal.cli.main import shoal
from shoal.frontier import open_frontier
from shoal.model import Crawl, CrawlState
from shoal.store import open_store
from shoal.store.base import ItemRule
from shoal.testing.contract.store.rows import item
from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 30
HOUR = 3600.0
KEEP = ItemRule(keep_versions=True)


@pytest.fixture(params=["sqlite", "files", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store with the results of three crawls, 30, 20 and 10 hours ago."""
    monkeypatch.chdir(tmp_path)
    url = "shoal.db" if request.param == "sqlite" else "files:out"
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(request.getfixturevalue("database"))
    asyncio.run(fill(url))
    return url


async def fill(url: str) -> None:
    """Three crawls: `a` stays, `b` changes in the second, `c` goes in the third, where `d` comes and `b` changes."""
    now = time.time()
    frontier = await open_frontier("shoal.db")
    for number in (1, 2, 3):
        crawl = Crawl(id=f"books-{number}", spider="books", created=now - (40 - 10 * number) * HOUR)
        await frontier.open_crawl(crawl)
        await frontier.set_state(crawl.id, CrawlState.CANCELLED)
    await frontier.open_crawl(Crawl(id="shoes-1", spider="shoes", created=now - 5 * HOUR))
    await frontier.close()
    results = await open_store(url)
    at = now - 29 * HOUR
    await results.write([item("a", at=at), item("b", at=at, data={"p": 1, "t": "x"}), item("c", at=at)], [], rule=KEEP)
    at = now - 19 * HOUR
    rows = [item("a", at=at, token=2), item("b", at=at, token=2, data={"p": 2, "t": "x"}), item("c", at=at, token=2)]
    await results.write(rows, [], rule=KEEP)
    at = now - 9 * HOUR
    rows = [item("a", at=at, token=3), item("b", at=at, token=3, data={"p": 3, "t": "x"}), item("d", at=at, token=3)]
    await results.write(rows, [], rule=KEEP)
    await results.mark_gone("books", at=at, unseen_since=now - 12 * HOUR)
    await results.close()


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(shoal, ("diff", *arguments))
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def changes(*arguments: str) -> dict[str, str]:
    """By key: how each item differs."""
    found = json.loads(run(*arguments, "--json"))
    shown = {one["key"]: one["change"] for one in found["differences"]}
    for change in ("new", "changed", "gone", "untold"):
        assert found[change] == list(shown.values()).count(change)
    return shown


def test_one_crawl_shows_what_it_changed(store: str) -> None:
    assert changes("books", "--store", store) == {"b": "changed", "c": "gone", "d": "new"}
    assert changes("books-3", "--store", store) == changes("books", "--store", store)
    assert changes("books-2", "--store", store) == {"b": "changed"}
    assert changes("books-1", "--store", store) == {"a": "new", "b": "new", "c": "new"}


def test_two_crawls_are_compared_by_what_was_there_after_each(store: str) -> None:
    assert changes("books-1", "books-2", "--store", store) == {"b": "changed"}
    assert changes("books-1", "books-3", "--store", store) == {"b": "changed", "c": "gone", "d": "new"}
    found = json.loads(run("books-1", "books-3", "--store", store, "--json", "--only", "changed"))
    assert (found["spider"], found["gone"]) == ("books", 0)
    (one,) = found["differences"]
    assert (one["fields"], one["before"], one["after"]) == (["p"], {"p": 1, "t": "x"}, {"p": 3, "t": "x"})
    assert time.time() - 10 * HOUR < one["at"] < time.time() - 8 * HOUR


def test_two_times_are_compared_without_a_frontier(store: str, tmp_path: Path) -> None:
    if store != "shoal.db":
        (tmp_path / "shoal.db").unlink()
    spider = ("--spider", "books", "--store", store)
    assert changes(*spider, "--since", "15h") == {"b": "changed", "c": "gone", "d": "new"}
    assert changes(*spider, "--since", "25h", "--until", "15h") == {"b": "changed"}
    assert changes(*spider, "--since", "5h") == {}
    assert "has no item of the spider 'boks'" in run("--spider", "boks", "--since", "5h", "--store", store, code=2)


def test_a_pipe_gets_a_line_with_tabs_for_each_difference(store: str) -> None:
    result = CliRunner().invoke(shoal, ("diff", "books", "--since", "15h", "--store", store))
    lines = sorted(line.split("\t") for line in result.stdout.splitlines())
    assert [(change, key, url, *rest) for change, _, key, url, *rest in lines] == [
        ("changed", "b", "https://a.test/b", "p: 2 → 3"),
        ("gone", "c", "https://a.test/c"),
        ("new", "d", "https://a.test/d"),
    ]
    assert result.stderr.startswith("books, 20")
    assert result.stderr.endswith(": 1 new, 1 changed, 1 gone\n")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(fill("shoal.db"))


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["boks"], "there is no crawl 'boks'; did you mean books?"),
        (["books-1", "books-9"], "there is no crawl 'books-9'"),
        (["books-2", "books-1"], "books-2 began after books-1: write `shoal diff books-1 books-2`"),
        (["books-2", "books-2"], "both crawls are books-2"),
        (["books-2", "shoes-1"], "books-2 is a crawl of books and shoes-1 one of shoes"),
        (["books-1", "books-2", "books-3"], "at most two crawls are compared, not 3"),
        (["books-1", "books-2", "--since", "1h"], "leave out --since and --until, or a crawl"),
        (["books-1", "--since", "1h"], "--since compares all items of a spider, not of one crawl: write books"),
        (["books", "--until", "1h"], "--until needs a time to compare with: add --since 7d"),
        (["--spider", "books"], "--spider needs a time to compare with"),
        (["books", "--spider", "books", "--since", "1h"], "leave out the crawl, or --spider"),
        (["books", "--since", "1h", "--until", "2h"], "--since must be before --until, and before now"),
        (["books", "--since", "soon"], "the time 'soon' is not understood"),
        (["books", "--frontier", "nowhere.db"], "there is no nowhere.db here"),
        (["books", "--store", "nowhere.db"], "there is no nowhere.db here"),
    ],
)
def test_what_cannot_be_compared_is_one_line(results: None, arguments: list[str], line: str) -> None:
    refusal = run(*arguments, code=2)
    assert line in refusal
    assert refusal.count("\n") == 1


def test_what_was_not_kept_is_said_to_be_untold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def write_twice(now: float) -> None:
        results = await open_store("shoal.db")
        for token, hours in enumerate((29, 19, 9), start=1):
            await results.write([item("b", at=now - hours * HOUR, token=token, data={"p": token})], [])
        await results.close()

    monkeypatch.chdir(tmp_path)
    asyncio.run(write_twice(time.time()))
    result = CliRunner().invoke(shoal, ("diff", "--spider", "books", "--since", "25h", "--until", "15h"))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("untold\t")
    assert "unknown for 1 item" in result.stderr
    assert "keep_versions" in result.stderr


def test_crawls_in_different_stores_are_not_compared_by_guess(folder: Folder, site: SiteProcess) -> None:
    folder.run("run", folder.spider(site.url), "--store", "one.db")
    folder.run("run", "books.py", "--again", "--store", "two.db")
    assert (
        "have their items in different stores: choose one with --store"
        in folder.run("diff", "books-1", "books-2", code=2).stderr
    )


def test_runs_of_a_spider_are_compared_on_a_terminal(folder: Folder, site: SiteProcess) -> None:
    folder.run("run", folder.spider(site.url), "--set", "keep_versions=true")
    (folder.path / "books.py").write_text((folder.path / "books.py").read_text().replace("title=", "name="))
    folder.run("run", "books.py", "--again", "--set", "keep_versions=true")
    shown = folder.on_terminal("diff", columns=200)
    assert "change" in shown.splitlines()[0]
    assert shown.count("title: ") == PRODUCTS
    assert f": {PRODUCTS} changed" in shown
    assert json.loads(folder.run("diff", "books-1", "--json").stdout)["new"] == PRODUCTS
