"""A crawl remembers where its results lie: workers, later runs and commands that look find them there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from command_line import SECONDS, Folder

from shoal.crawl.places import RememberedPlace
from shoal.crawl.record import CrawlRecord, record_of
from shoal.frontier import open_frontier
from shoal.testing.servers.postgres_server import POSTGRES_PASSWORD, PostgresServer
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 6
ITEMS = PRODUCTS


@pytest.fixture
def frontier(redis: RedisServer) -> list[str]:
    """The options for an empty Redis frontier."""
    return ["--frontier", redis.url]


@pytest.fixture
def other(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Another folder of the same machine."""
    return Folder(tmp_path_factory.mktemp("other"))


def unfinished(folder: Folder, site: SiteProcess, *options: str, book: int = 3) -> str:
    """A crawl that is finished but for one page, which is added again; gives the spider's file."""
    name = folder.spider(site.url, first="pass")
    folder.run("run", name, *options)
    frontier = list(options[options.index("--frontier") :][:2]) if "--frontier" in options else []
    add_page(folder, site, *frontier, book=book)
    return name


def add_page(folder: Folder, site: SiteProcess, *frontier: str, book: int) -> None:
    added = folder.json("add", "books-1", f"{site.url}catalogue/page-1.html?again={book}", *frontier)
    assert added["new"] == 1


def names(folder: Folder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir() if not path.name.endswith((".pyc", "-wal", "-shm")))


def items_in(folder: Folder, store: str) -> int:
    answer = folder.run("sql", "SELECT count(*) AS n FROM items", "--json", "--store", store)
    number: int = json.loads(answer.stdout)["n"]
    return number


def change_record(url: str, **changes: Any) -> None:
    """Change what the crawl remembers of its store, as if it had begun elsewhere."""

    def moved(place: RememberedPlace | None) -> RememberedPlace | None:
        return None if place is None else msgspec.structs.replace(place, **changes)

    async def change() -> None:
        frontier = await open_frontier(url)
        (crawl,) = await frontier.crawls()
        record: CrawlRecord = record_of(crawl)
        results = msgspec.structs.replace(record.results, store=moved(record.results.store))
        settings = msgspec.to_builtins(msgspec.structs.replace(record, results=results))
        await frontier.open_crawl(msgspec.structs.replace(crawl, settings=settings))
        await frontier.close()

    asyncio.run(change())


def test_a_worker_without_a_store_takes_that_of_the_crawl(
    folder: Folder, other: Folder, site: SiteProcess, frontier: list[str]
) -> None:
    unfinished(folder, site, *frontier, "--store", "results.db")
    name = other.spider(site.url)
    (other.path / name).unlink()
    before = items_in(folder, "results.db")
    said = other.run("worker", str(folder.path / name), "--burst", *frontier).stderr.splitlines()
    assert said == [f"took up books-1 (store {folder.path}/results.db)", "left books-1: 1 page"]
    assert names(other) == []
    assert items_in(folder, "results.db") == before == ITEMS


def test_a_worker_or_a_run_that_names_another_store_is_refused(
    folder: Folder, other: Folder, site: SiteProcess, frontier: list[str]
) -> None:
    name = unfinished(folder, site, *frontier, "--store", "results.db")
    spider = str(folder.path / name)
    line = f"the items of books-1 lie in {folder.path}/results.db, not in own.db: leave out --store and SHOAL_STORE"
    for command in (["worker", spider, "--burst"], ["worker", spider], ["run", spider]):
        assert line in other.refusal(*command, *frontier, "--store", "own.db")
    assert names(other) == []
    assert folder.json("status", "books-1", *frontier)["left"] == 1


def test_with_other_store_both_are_used_and_status_says_where_items_lie(
    folder: Folder, other: Folder, site: SiteProcess, frontier: list[str]
) -> None:
    name = unfinished(folder, site, *frontier, "--store", "results.db")
    spider = str(folder.path / name)
    other.run("worker", spider, "--burst", "--store", "own.db", "--other-store", *frontier)
    assert "own.db" in names(other)
    status = other.json("status", "books-1", *frontier)
    host = status["workers"][0]["host"]
    assert (status["store"], status["other_stores"]) == (
        f"{folder.path}/results.db",
        [f"{other.path}/own.db on {host}"],
    )
    shown = other.run("status", "books-1", *frontier).stdout
    where = f"{ITEMS} in {folder.path}/results.db; also in {other.path}/own.db on {host}"
    assert f"items:   {where}" in shown or f"items: {where}" in " ".join(shown.split())
    exported = other.run("export", "books-1", "-o", "-", *frontier)
    assert len(exported.stdout.splitlines()) == ITEMS
    assert f"items of books-1 are also in {other.path}/own.db on {host}: they are not in this file" in exported.stderr


def test_a_file_from_the_other_store_says_that_the_first_ones_items_are_missing(
    folder: Folder, other: Folder, site: SiteProcess, frontier: list[str]
) -> None:
    name = unfinished(folder, site, *frontier, "--store", "results.db")
    options = ("--store", "own.db", "--other-store", "-o", "own.csv", *frontier)
    said = other.run("run", str(folder.path / name), *options).stderr
    assert f"items of books-1 are also in {folder.path}/results.db: they are not in this file" in said
    said = other.run("export", "books-1", "-o", "-", "--store", "own.db", *frontier).stderr
    assert f"items of books-1 are also in {folder.path}/results.db: they are not in this file" in said


def test_a_resumed_run_keeps_its_store(folder: Folder, site: SiteProcess) -> None:
    name = unfinished(folder, site, "--store", "results.db")
    assert "lie in" in folder.refusal("run", name, "--store", "shoal.db")
    assert "lie in" in folder.refusal("run", name, "--store", "own.db")
    summary = folder.json("run", name)
    assert summary["resumed"]
    assert (summary["items"], summary["store"]) == (ITEMS, str(folder.path / "results.db"))
    add_page(folder, site, book=4)
    assert folder.json("run", name, "--store", "./results.db")["resumed"]
    assert names(folder) == ["books.py", "results.db", "shoal.db"]


def test_a_store_file_that_is_gone_is_not_begun_anew_in_silence(folder: Folder, site: SiteProcess) -> None:
    name = unfinished(folder, site, "--store", "results.db")
    # Held open: a file is known by its number, which the system would give to the next file.
    with (folder.path / "results.db").open("rb"):
        for file in folder.path.glob("results.db*"):
            file.unlink()
        gone = f"{folder.path}/results.db, which is not there any more"
        assert gone in folder.refusal("run", name)
        for command in ("run", "worker"):
            assert gone in folder.refusal(command, name, "--store", "results.db")
        assert names(folder) == ["books.py", "shoal.db"]
        said = folder.run("run", name, "--store", "results.db", "--other-store").stdout
    assert f"the spider yielded {ITEMS} items, the store has 0 of this crawl" in said
    assert "replaced" not in said


def test_commands_that_look_take_the_crawls_store_and_create_none(
    folder: Folder, other: Folder, site: SiteProcess, frontier: list[str]
) -> None:
    unfinished(folder, site, *frontier)
    url = f"{site.url}catalogue/page-1.html"
    assert other.json("status", "books-1", *frontier)["items"] == ITEMS
    assert other.json("why", url, *frontier)["fetch"]["status"] == 200
    assert len(other.run("export", "books-1", "-o", "-", *frontier).stdout.splitlines()) == ITEMS
    other.run("top", *frontier)
    other.run("dead", "list", *frontier)
    assert names(other) == []
    # One that they are given by a slip is named beside the crawl's own.
    other.run("store", "init", "--store", "mine.db")
    said = other.run("status", "books-1", "--store", "mine.db", *frontier)
    own = f"{folder.path}/shoal.db"
    assert f"the items of books-1 are in {own}: what is shown here is from mine.db, which --store" in said.stderr
    assert f"0 in mine.db; its own are in {own}" in " ".join(said.stdout.split())
    said = other.run("export", "books-1", "-o", "-", "--store", "mine.db", *frontier)
    assert f"items of books-1 are also in {own}: they are not in this file" in said.stderr


def test_a_file_of_another_machine_is_refused_with_the_flags_to_give(
    folder: Folder, other: Folder, site: SiteProcess, frontier: list[str]
) -> None:
    name = unfinished(folder, site, *frontier)
    change_record(frontier[1], machine="another", host="far.example", inode=-1)
    spider = str(folder.path / name)
    where = f"the items of books-1 lie in {folder.path}/shoal.db on the machine far.example: "
    for command in (["worker", spider, "--burst"], ["run", spider]):
        refusal = folder.refusal(*command, *frontier)
        assert where in refusal
        assert "(--store postgresql://…), or give this process one of its own: --store URL --other-store" in refusal
    assert f"{where}run this there, or give --store URL" in folder.refusal("export", "books-1", "-o", "-", *frontier)
    status = other.run("status", "books-1", *frontier)
    assert where in status.stderr
    assert "1 queued" in status.stdout
    other.run("worker", spider, "--burst", "--other-store", *frontier)
    assert items_in(other, "shoal.db") == 0
    assert other.json("status", "books-1", *frontier)["other_stores"]


def test_a_password_is_not_remembered_and_asked_for(
    folder: Folder,
    other: Folder,
    site: SiteProcess,
    frontier: list[str],
    postgres: PostgresServer,
    redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = postgres.new_database("places")
    name = unfinished(folder, site, *frontier, "--store", url)
    spider = str(folder.path / name)
    hashes = [key for key in redis.call("KEYS", "*") if redis.call("TYPE", key) == b"hash"]
    remembered = b"".join(value for key in hashes for value in redis.call("HVALS", key))
    assert b"shoal@127.0.0.1" in remembered
    for secret in (POSTGRES_PASSWORD, quote(POSTGRES_PASSWORD, safe="")):
        assert secret.encode() not in remembered
    refusal = other.refusal("worker", spider, "--burst", *frontier)
    assert ", which needs a password: give --store with it, as in postgresql://shoal:…@127.0.0.1" in refusal
    assert other.json("status", "books-1", "--store", url, *frontier)["items"] == ITEMS
    monkeypatch.setenv("PGPASSWORD", POSTGRES_PASSWORD)
    assert "left books-1: 1 page" in other.run("worker", spider, "--burst", *frontier).stderr
    assert names(other) == []
    assert other.json("status", "books-1", *frontier)["items"] == ITEMS


def test_an_archive_is_remembered_like_a_store(folder: Folder, other: Folder, site: SiteProcess) -> None:
    name = unfinished(folder, site, "--archive", "pages")
    place = ["--frontier", str(folder.path / "shoal.db")]
    spider = str(folder.path / name)
    line = f"the raw pages of books-1 lie in {folder.path}/pages, not in own: leave out --archive"
    assert line in other.refusal("run", spider, "--archive", "own", *place)
    assert line in other.refusal("worker", spider, "--burst", "--archive", "own", *place)
    other.run("worker", spider, "--burst", *place)
    url = f"{site.url}catalogue/page-1.html?again=3"
    assert other.json("page", url, "--list", *place)[0]["status"] == 200
    assert other.json("replay", spider, *place)["items"] == ITEMS
    other.run("warc", "books-1", "-o", "books.warc.gz", *place)
    assert other.json("status", "books-1", *place)["archive"] == f"{folder.path}/pages"
    assert names(other) == ["books.warc.gz"]


def test_a_worker_does_not_keep_pages_of_a_crawl_that_keeps_none(folder: Folder, site: SiteProcess) -> None:
    name = unfinished(folder, site)
    assert "books-1 keeps no raw pages: leave out --archive" in folder.refusal(
        "worker", name, "--burst", "--archive", "pages"
    )
    resumed = folder.run("run", name, "--archive", "pages")
    assert "raw pages are kept from now on" in resumed.stderr
    assert folder.json("status", "books-1")["archive"] == f"{folder.path}/pages"


def test_places_come_from_their_variables_in_every_command_and_flags_win(
    folder: Folder, site: SiteProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {
        "SHOAL_FRONTIER": "tasks.db",
        "SHOAL_STORE": "items.db",
        "SHOAL_ARCHIVE": "pages",
        "SHOAL_SINK": "a.jsonl",
    }

    def run(*line: str, code: int = 0) -> str:
        environ = folder.environ() | places
        with folder.start(*line, env=environ) as process:
            out, err = process.communicate(timeout=SECONDS)
        assert process.returncode == code, f"{line}: {out}\n{err}"
        return out + err

    spider = folder.spider(site.url)
    run("run", spider, "--workers", "2")
    assert set(names(folder)) == {"books.py", "tasks.db", "items.db", "pages", "a.jsonl"}
    assert len((folder.path / "a.jsonl").read_text().splitlines()) == ITEMS
    assert run("sql", "SELECT count(*) AS n FROM items", "--json") == f'{{"n":{ITEMS}}}\n'
    assert run("store", "tidy", "--retention", "30d") == "0 log lines dropped from items.db\n"
    assert "a.jsonl" in run("sink", "status")
    assert "200" in run("page", f"{site.url}catalogue/page-1.html", "--list")
    assert "there is no other.db here" in run("sql", "SELECT 1", "--store", "other.db", code=2)
    for name, command in (("STORE", ["sql", "SELECT 1"]), ("STORE", ["status"]), ("FRONTIER", ["crawls"])):
        places[f"SHOAL_{name}"], kept = "nowhere.db", places[f"SHOAL_{name}"]
        assert f"there is no nowhere.db here, which SHOAL_{name} names: " in run(*command, code=2)
        places[f"SHOAL_{name}"] = kept
    shown = json.loads(run("settings", "--json"))
    assert [shown[name]["from"] for name in ("archive", "pipe", "exits")] == ["SHOAL_ARCHIVE", "default", "default"]
    assert (shown["store"]["value"], shown["store"]["from"]) == ("items.db", "SHOAL_STORE")
    places["SHOAL_ARCHIVE"] = "own"
    add_page(folder, site, "--frontier", "tasks.db", book=3)
    assert "not in own: leave out --archive and SHOAL_ARCHIVE, or" in run("worker", spider, "--burst", code=2)


def test_a_worker_keeps_the_stores_of_several_crawls_apart(
    folder: Folder, site: SiteProcess, frontier: list[str]
) -> None:
    text = Path(folder.path / folder.spider(site.url)).read_text(encoding="utf-8")
    (folder.path / "books.py").write_text(text + text.replace("class Books", "class More"), encoding="utf-8")
    for spider, store in (("Books", "one.db"), ("More", "two.db")):
        folder.run("run", f"books.py:{spider}", "--store", store, *frontier)
        assert folder.json("add", f"{spider.lower()}-1", f"{site.url}catalogue/page-1.html?x=1", *frontier)["new"] == 1
    said = folder.run("worker", "books.py", "--burst", *frontier).stderr.splitlines()
    assert f"took up books-1 (store {folder.path}/one.db)" in said
    assert f"took up more-1 (store {folder.path}/two.db)" in said
    assert sorted(said)[:2] == ["left books-1: 1 page", "left more-1: 1 page"]
    rows = folder.run("sql", "SELECT DISTINCT crawl FROM fetches", "--json", "--store", "two.db").stdout
    assert json.loads(rows) == {"crawl": "more-1"}


def test_a_crawl_of_a_former_version_is_worked_on_as_before(folder: Folder, site: SiteProcess) -> None:
    name = unfinished(folder, site)
    file = str(folder.path / "shoal.db")

    async def forget() -> None:
        frontier = await open_frontier(file)
        (crawl,) = await frontier.crawls()
        settings = {key: value for key, value in crawl.settings.items() if key not in ("results", "source")}
        await frontier.open_crawl(msgspec.structs.replace(crawl, settings=settings))
        await frontier.close()

    asyncio.run(forget())
    folder.run("worker", name, "--burst", "--store", "own.db")
    assert "own.db" in names(folder)
