"""Results from the command line: other stores, filters of an export, statements, `shoal store`."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from command_line import Folder

from shoal.cli.display.numbers import moment_given
from shoal.cli.main import shoal
from shoal.errors import UsageError
from shoal.store.base import ItemRule
from shoal.store.sqlite.store import SqliteStore
from shoal.testing.contract.store.rows import fetch, item
from shoal.testing.sites.site_process import SiteProcess
from shoal.version import install_command

PRODUCTS = 30
A_DAY = 86_400.0


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> float:
    """A store in this folder, and when it was filled."""
    monkeypatch.chdir(tmp_path)
    return asyncio.run(fill(time.time()))


async def fill(now: float) -> float:
    store = await SqliteStore.open("shoal.db")
    rule = ItemRule(keep_versions=True)
    before = [item(key, data={"n": number, "t": "a\tb"}, at=now - 30 * A_DAY) for number, key in enumerate("abc")]
    await store.write(before, [fetch(1, at=now - 30 * A_DAY), fetch(2, at=now)], rule=rule)
    await store.write(
        [item("a", data={"n": 9}, token=2, at=now), item("b", data={"n": 1, "t": "a\tb"}, token=2, at=now)],
        [],
        rule=rule,
    )
    await store.close()
    return now


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(shoal, arguments)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def exported(*arguments: str) -> list[str]:
    lines = run("export", "--spider", "books", "-o", "-", *arguments).splitlines()
    return [f"{row['_key']}{row.get('_version', '')}" for row in map(json.loads, lines)]


def test_exports_what_was_asked_for_without_a_frontier(results: float) -> None:
    assert exported() == ["a", "b", "c"]
    assert exported("--since", "7d") == ["a", "b"]
    assert exported("--changed-since", "7d") == ["a"]
    assert exported("--changed-since", "2020-01-01", "--url", "https://a.test/c") == ["c"]
    assert exported("--where", "n=1", "--where", "t=a\tb") == ["b"]
    assert exported("--versions") == ["a1", "b1", "c1", "a2"]
    assert exported("--versions", "--url", "https://a.test/a") == ["a1", "a2"]


def test_exports_items_that_are_gone_or_those_that_are_not(results: float) -> None:
    async def mark() -> None:
        store = await SqliteStore.open("shoal.db")
        assert await store.mark_gone("books", at=results - A_DAY, unseen_since=results - A_DAY) == 1
        await store.close()

    asyncio.run(mark())
    assert exported() == ["a", "b", "c"]
    assert (exported("--gone"), exported("--present")) == (["c"], ["a", "b"])
    lines = list(map(json.loads, run("export", "--spider", "books", "-o", "-").splitlines()))
    assert ["_gone_at" in line for line in lines] == [False, False, True]
    assert datetime.fromisoformat(lines[2]["_gone_at"]).timestamp() == pytest.approx(results - A_DAY, abs=0.001)
    run("export", "--spider", "books", "-o", "all.csv")
    assert Path("all.csv").read_text().splitlines()[0] == "n,t,_key,_url,_gone_at"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--since", "yesterday"], "the time 'yesterday' is not understood"),
        (["--where", "n"], "write --where FIELD=VALUE"),
        (["books-1"], "--spider exports all items of the spider"),
        (["--store", "nowhere.db"], "there is no nowhere.db here"),
        (["--store", "files:nowhere"], "there is no nowhere here"),
        (["--store", "mongodb://me:secret@host/x"], "unknown store 'mongodb://me:***@host/x'"),
    ],
)
def test_what_cannot_be_exported_is_one_line(results: float, arguments: list[str], line: str) -> None:
    refusal = run("export", "--spider", "books", "-o", "-", *arguments, code=2)
    assert line in refusal
    assert len(refusal.splitlines()) == 1
    assert "secret" not in refusal


@pytest.mark.parametrize("command", [("status",), ("top",), ("why", "https://a.test/")])
@pytest.mark.parametrize("url", ["nowhere.db", "files:nowhere"])
def test_a_store_that_is_not_there_is_refused_and_not_created(
    results: float, command: tuple[str, ...], url: str
) -> None:
    refusal = run(*command, "--store", url, code=2)
    assert refusal.startswith(f"shoal: there is no {url.removeprefix('files:')} here: ")
    assert len(refusal.splitlines()) == 1
    assert [path.name for path in Path().iterdir() if "nowhere" in path.name] == []


def test_times_are_dates_or_how_long_ago() -> None:
    assert moment_given("1970-01-02T00:00:00+00:00") == A_DAY
    assert moment_given("2026-05-01") < moment_given("2026-05-01T10:00")
    assert moment_given("1w", now=10 * A_DAY) == moment_given("7 d", now=10 * A_DAY) == 3 * A_DAY
    assert moment_given("0m", now=A_DAY) == A_DAY
    for text in ("", "1 2 h", "7", "2026-13-01"):
        with pytest.raises(UsageError):
            moment_given(text)


def test_a_statement_is_answered_in_tabs_and_as_json(results: float) -> None:
    lines = run("sql", "SELECT key, data ->> 't' AS t FROM items ORDER BY key").splitlines()
    assert lines == ["key\tt", "a\t", "b\ta\\tb", "c\ta\\tb"]
    rows = run("sql", "SELECT key, version, x'00ff' AS raw FROM items_changed", "--json").splitlines()
    assert [json.loads(row) for row in rows] == [{"key": "a", "version": 2, "raw": "00ff"}]
    assert run("sql", "SELECT host, count(*) FROM fetches GROUP BY host").splitlines()[1] == "a.test\t2"


def test_a_statements_answer_has_no_control_characters_in_a_pipe(results: float) -> None:
    evil = "'a' || char(27) || ']0;x' || char(7, 155, 8238, 10, 92)"
    assert run("sql", f'SELECT {evil} AS "e\x1b"') == "e\\x1b\na\\x1b]0;x\\x07\\x9b\\x202e\\n\\\\\n"


def test_more_rows_than_wanted_are_left_out_and_said(results: float) -> None:
    result = CliRunner().invoke(shoal, ["sql", "SELECT key FROM items ORDER BY key", "--limit", "2"])
    assert result.stdout.splitlines() == ["key", "a", "b"]
    assert "--limit shows more" in result.stderr


@pytest.mark.parametrize(
    "statement", ["DELETE FROM item", "SELECT 1; SELECT 2", "SELECT nothing", "ATTACH 'x.db' AS x"]
)
def test_a_statement_that_does_not_read_is_refused(results: float, statement: str) -> None:
    refusal = run("sql", statement, code=2)
    assert len(refusal.splitlines()) == 1
    assert run("sql", "SELECT count(*) FROM items").splitlines() == ["count(*)", "3"]


def test_a_store_is_made_ready_and_tidied(results: float, tmp_path: Path) -> None:
    assert run("store", "init", "--store", "new.db") == "new.db is ready\n"
    with sqlite3.connect(tmp_path / "new.db") as connection:
        assert connection.execute("SELECT count(*) FROM items").fetchone() == (0,)
    connection.close()
    assert "give --retention 90d" in run("store", "tidy", code=2)
    assert run("store", "tidy", "--retention", "7d") == "1 log line dropped from shoal.db\n"
    (tmp_path / "shoal.toml").write_text('retention = "1d"\n')
    assert run("store", "tidy") == "0 log lines dropped from shoal.db\n"
    assert run("store", "tidy", "--versions-retention", "7d").splitlines() == [
        "0 log lines dropped from shoal.db",
        "0 versions of items dropped from shoal.db",
    ]
    assert "there is no other.db here" in run("store", "tidy", "--store", "other.db", code=2)


def test_a_missing_driver_or_an_unknown_store_shows_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refusal = run("store", "init", "--store", "mysql://me:secret@host/db?token=secret", code=2)
    assert "unknown store 'mysql://me:***@host/db?token=***'" in refusal
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    for name in [name for name in sys.modules if name.startswith("shoal.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    refusal = run("store", "init", "--store", "postgresql://me:secret@host/db", code=2)
    assert f"postgresql:// needs its driver: {install_command('postgres')}" in refusal
    assert "secret" not in refusal


def test_a_crawl_writes_to_files_and_an_unstorable_item_is_a_dead_letter(folder: Folder, site: SiteProcess) -> None:
    nan = 'if "000007" in page.url: yield Item(key="nan", price=float("nan"))'
    flags = ["--store", "files:out", "--workers", "2", "--set", "keep_versions=true"]
    summary = folder.json("run", folder.spider(site.url, first=nan), *flags)
    assert (summary["dead"], summary["store"]) == (1, "files:out")
    # The page's other item is stored, and its links were followed.
    assert summary["items"] == PRODUCTS
    dead = folder.json("dead", "list", "books-1")
    assert [letter["reason"] for letter in dead] == ["unstorable: item 'nan': a number that is not finite in price"]
    lines = folder.run("sql", "SELECT outcome, count(*) FROM fetches GROUP BY 1 ORDER BY 1", "--store", "files:out")
    assert "unstorable\t1" in lines.stdout.splitlines()
    export = folder.run("export", "books-1", "--store", "files:out", "--versions", "-o", "books.csv")
    assert export.stderr == f"{PRODUCTS} versions of books-1 in books.csv\n"
    assert list((folder.path / "out").glob("items-*.jsonl"))


def test_old_log_lines_are_dropped_while_a_crawl_runs(folder: Folder, site: SiteProcess) -> None:
    name = folder.spider(site.url)
    folder.json("run", name, "--max-pages", "3")
    with sqlite3.connect(folder.path / "shoal.db") as connection:
        connection.execute("UPDATE fetch SET at = 1.0")
    connection.close()
    folder.json("run", name, "--again", "--max-pages", "3", "--set", "retention=90d")
    answer = folder.run("sql", "SELECT crawl, count(*) FROM fetches GROUP BY 1").stdout
    assert [line.split("\t")[0] for line in answer.splitlines()[1:]] == ["books-2"]
