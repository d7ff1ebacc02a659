"""Old weeks of the log in an archive: from every kind of store to every kind of place, by processes that are killed."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import os
import re
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import obstore
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest
from command_line import Folder

from docs_pages import ROOT
from shoal.archive.urls import find_place
from shoal.store import open_store
from shoal.store.base import FetchRow, ItemRule
from shoal.testing.contract.store.rows import fetch, item
from shoal.testing.servers.object_server import Gate, MotoServer
from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import wait_until

PRODUCTS = 4
A_DAY = 86_400.0
LINES = 30
PAGE = ROOT / "docs" / "how-to" / "results.md"
DYING = Path(__file__).with_name("dying_mover.py")


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    if request.param == "sqlite":
        return str(tmp_path / "results.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(request.getfixturevalue("database"))


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.full)])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an archive that is not there yet."""
    if request.param == "folder":
        return str(tmp_path / "log archive")
    server: MotoServer = request.getfixturevalue("moto")
    server.make_bucket("logs")
    return server.url("logs", tmp_path.name)


async def fill(url: str, lines: list[FetchRow]) -> None:
    opened = await open_store(url)
    await opened.write([], lines)
    await opened.close()


def old_lines(number: int = LINES) -> list[FetchRow]:
    """Lines of three weeks that are over, some with texts that pages may have, and one of today."""
    now = time.time()
    odd = ["", "\ud800 half", "NUL \x00", "'; DROP TABLE fetches; --", "é🐟\n\t"]
    return [
        fetch(key, at=now - (14 + 7 * (key % 3)) * A_DAY, error=odd[key % 5], parent=key - 1 if key else None)
        for key in range(number)
    ] + [fetch(number, at=now)]


def archived(url: str) -> list[dict[str, Any]]:
    """Every line in the Parquet files of an archive."""
    objects = find_place(url, create=True).objects
    names = [entry["path"] for entry in obstore.list(objects, "log").collect()]
    tables = [pyarrow.parquet.read_table(io.BytesIO(obstore.get(objects, name).bytes())) for name in names]
    return [row for table in tables for row in table.to_pylist()]


def tidy(folder: Folder, store: str, archive: str, *, days: int = 1) -> Any:
    return folder.json("store", "tidy", "--store", store, "--retention", f"{days}d", "--retention-archive", archive)


async def test_old_weeks_lie_in_the_archive_and_no_longer_in_the_store(
    folder: Folder, store: str, archive: str
) -> None:
    await fill(store, old_lines())
    done = tidy(folder, store, archive)
    assert (done["moved"], done["dropped"]) == (LINES, 0)
    rows = sorted(archived(archive), key=lambda row: row["key"])
    assert [row["key"] for row in rows] == list(range(LINES))
    assert rows[7] | {"at": 0} == {
        "crawl": "c1", "key": 7, "url": "https://a.test/7", "host": "a.test", "outcome": "ok", "token": 1, "attempt": 1,
        "at": 0, "status": 0, "final_url": "", "worker": "", "exit": "", "size": 0, "elapsed": 0.0,
        "error": "NUL \\x00", "parent": 6, "content_hash": "", "archived": "", "request": "", "item_keys": "",
        "etag": "", "last_modified": "",
    }  # fmt: skip
    assert abs(rows[7]["at"].timestamp() - (time.time() - 21 * A_DAY)) < 600
    assert rows[6]["error"] == "\\ud800 half"
    left = folder.run("sql", "SELECT key FROM fetches", "--store", store).stdout
    assert left.split() == ["key", str(LINES)]
    weeks = folder.json("store", "weeks", "--store", store)
    assert [(week["lines"], week["files"], week["archive"]) for week in weeks] == [(10, 1, archive)] * 3
    shown = folder.run("store", "weeks", "--store", store).stdout
    assert f"{weeks[0]['week']}" in shown
    assert f"{archive.partition('?')[0]}/log/week={weeks[0]['week']}" in shown.replace("\n", "")
    assert tidy(folder, store, archive)["moved"] == 0


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_killed_process_loses_no_line_and_leaves_none_twice(
    folder: Folder, store: str, archive: str, when: str
) -> None:
    """One to two seconds each: three processes die, one lives."""
    await fill(store, old_lines())
    for _ in range(3):
        mover = await asyncio.create_subprocess_exec(sys.executable, str(DYING), store, archive, when)
        assert await mover.wait() == -signal.SIGKILL
        if when == "after":
            assert archived(archive)
    # A line that comes late for the week whose file is there already.
    await fill(store, [fetch(LINES + 1, at=time.time() - 28 * A_DAY)])
    assert tidy(folder, store, archive)["moved"] == LINES + 1
    assert sorted(row["key"] for row in archived(archive)) == [*range(LINES), LINES + 1]


async def test_what_a_killed_process_has_written_of_a_file_is_nothing_to_readers(folder: Folder) -> None:
    store, log = str(folder.path / "shoal.db"), str(folder.path / "log")
    await fill(store, old_lines())
    for _ in range(2):
        mover = await asyncio.create_subprocess_exec(sys.executable, str(DYING), store, log, "during")
        assert await mover.wait() == -signal.SIGXFSZ
    assert tidy(folder, store, log)["moved"] == LINES
    assert pyarrow.dataset.dataset(f"{log}/log", partitioning="hive").count_rows() == LINES


async def test_an_archive_that_refuses_leaves_the_week_in_the_store(folder: Folder, store: str, tmp_path: Path) -> None:
    await fill(store, old_lines())
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "shoal-archive.json").write_text("[]")
    line = folder.refusal(
        "store", "tidy", "--store", store, "--retention", "1d", "--retention-archive", str(theirs), code=1
    )
    assert "is damaged or of another program" in line
    assert folder.json("store", "weeks", "--store", store) == []
    answer = folder.run("sql", "SELECT count(*) AS n FROM fetches", "--store", store).stdout
    assert answer.split() == ["n", str(LINES + 1)]


async def _keys(url: str) -> list[int]:
    opened = await open_store(url)
    found = await opened.fetches("c1", range(LINES + 1))
    await opened.close()
    return [row.key for row in found]


async def test_a_crawl_moves_what_is_old_beside_its_work(folder: Folder, site: SiteProcess) -> None:
    await fill(str(folder.path / "shoal.db"), old_lines())
    (folder.path / "shoal.toml").write_text('retention = "1d"\nretention_archive = "old log"\n')
    said = await _until_said(folder, site, f"{LINES} log lines moved to old log")
    assert said.count("log lines moved") == 1
    assert len(archived(str(folder.path / "old log"))) == LINES
    assert {week["archive"] for week in folder.json("store", "weeks")} == {str(folder.path / "old log")}
    answer = folder.run("sql", "SELECT crawl, count(*) AS n FROM fetches GROUP BY 1 ORDER BY 1", "--json").stdout
    assert [json.loads(row)["crawl"] for row in answer.splitlines()] == ["books-1", "c1"]
    assert folder.run("settings", "--json").stdout.count("old log") == 1


async def test_a_crawl_whose_log_archive_is_away_says_so_once_and_goes_on(
    folder: Folder, site: SiteProcess, moto: MotoServer
) -> None:
    gate = await Gate(moto.port).open()
    moto.make_bucket("away")
    url = moto.url("away", "log", port=gate.port)
    await gate.shut()
    await fill(str(folder.path / "shoal.db"), old_lines())
    flags = ["--set", "retention=1d", "--set", f"retention_archive={url}"]
    said = await _until_said(folder, site, "the archive in s3://away/log cannot be reached", *flags)
    assert said.count("cannot be reached") == 1
    assert len(await _keys(str(folder.path / "shoal.db"))) == LINES + 1


async def _until_said(folder: Folder, site: SiteProcess, line: str, *flags: str) -> str:
    """Run a slow crawl until it says this, then let it end; gives all that it said."""
    spider, heard = folder.spider(site.url, rate="12/m"), folder.path / "said"
    with heard.open("w") as err, folder.start("run", spider, *flags, stderr=err, env={**os.environ}) as process:
        await asyncio.to_thread(wait_until, lambda: line in heard.read_text(), otherwise="nothing is said")
        await asyncio.to_thread(folder.hurry, site.url)
        assert await asyncio.to_thread(process.wait, 120) == 0
    return heard.read_text()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ('retention_archive = "pages"', "also set `retention`"),
        ('retention = "90d"\nretention_archive = "s3://"', "s3:// names no bucket"),
        ('retention = "90d"\nretention_archive = "redis://x/0"', "no archive for redis://"),
    ],
)
def test_what_could_move_nothing_is_refused_before_a_crawl(
    folder: Folder, site: SiteProcess, settings: str, complaint: str
) -> None:
    (folder.path / "shoal.toml").write_text(settings)
    assert complaint in folder.refusal("run", folder.spider(site.url))
    assert not (folder.path / "shoal.db").exists()


async def test_an_archive_that_is_an_empty_text_drops_nothing(folder: Folder) -> None:
    store = str(folder.path / "shoal.db")
    await fill(store, old_lines())
    assert "retention_archive (command line) is empty" in folder.refusal(
        "store", "tidy", "--retention", "1d", "--retention-archive", ""
    )
    assert len(await _keys(store)) == LINES + 1


def test_a_log_that_is_files_already_is_not_moved(folder: Folder, site: SiteProcess) -> None:
    flags = ["--set", "retention=90d", "--set", "retention_archive=pages", "--store", "files:out"]
    assert "fetches-*.jsonl already" in folder.refusal("run", folder.spider(site.url), *flags)


async def test_the_code_of_the_page_reads_what_was_moved(folder: Folder) -> None:
    await fill(str(folder.path / "shoal.db"), [*old_lines(), fetch(50, at=1.0, outcome="http_403")])
    folder.run("store", "tidy", "--retention", "90d", "--retention-archive", "log/")
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    reader = await asyncio.create_subprocess_exec(
        sys.executable, "-c", block, cwd=folder.path, stdout=asyncio.subprocess.PIPE
    )
    answer, _ = await reader.communicate()
    (row,) = ast.literal_eval(answer.decode())
    assert (str(row["week"]), row["host"], row["url_count"]) == ("1969-12-29", "a.test", 1)


async def test_a_crawl_drops_versions_that_were_replaced_long_ago(folder: Folder, site: SiteProcess) -> None:
    file, now, rule = folder.path / "shoal.db", time.time(), ItemRule(keep_versions=True)
    store = await open_store(str(file))
    for spider in ("books", "films"):
        for token, days in enumerate((90, 60, 0), start=1):
            row = item("k", spider=spider, data={"v": token}, token=token, at=now - days * A_DAY)
            await store.write([row], [], rule=rule)
    await store.close()
    with sqlite3.connect(file, check_same_thread=False) as database:

        def versions() -> list[tuple[str, int]]:
            return database.execute("SELECT spider, version FROM item_version ORDER BY 1, 2").fetchall()

        flags = ["--set", "versions_retention=30d"]
        with folder.start("run", folder.spider(site.url, rate="12/m"), *flags) as process:
            await asyncio.to_thread(wait_until, lambda: len(versions()) == 5, otherwise="nothing is dropped")
            await asyncio.to_thread(folder.hurry, site.url)
            process.communicate(timeout=120)
        assert versions() == [("books", 2), ("books", 3), ("films", 1), ("films", 2), ("films", 3)]
    database.close()
