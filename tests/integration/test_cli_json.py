"""--json: one document on stdout for scripts, on every command that a script would use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from shoal.archive import open_archive
from shoal.cli.main import COMMANDS, shoal
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.model import Crawl, Dead
from shoal.settings.table import Settings
from shoal.store.sqlite.store import SqliteStore
from shoal.testing.archive_contract import raw_page
from shoal.testing.contract.store.rows import item
from shoal.testing.fakes import task_for

# What people watch, and workers: these have no result. A row of `sql` is a document of its own.
WITHOUT = {"demo", "worker", "top"}


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, *path, name)
        else:
            yield " ".join((*path, name)), found


ALL = dict(commands(shoal))


@pytest.mark.parametrize("name", sorted(set(ALL) - WITHOUT))
def test_a_command_that_a_script_would_use_has_json(name: str) -> None:
    assert any("--json" in option.opts for option in ALL[name].params)


def test_every_command_was_looked_at() -> None:
    assert {name.split()[0] for name in ALL} == set(COMMANDS)


@pytest.fixture
def crawl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A crawl with two dead letters, one task that waits, an item and an archived page."""
    monkeypatch.chdir(tmp_path)
    asyncio.run(_fill())
    return "books-1"


async def _fill() -> None:
    frontier: Frontier = await open_frontier("shoal.db")
    record = {"settings": {"item_key": Settings().item_key}, "spider": "books.py"}
    await frontier.open_crawl(Crawl(id="books-1", spider="books", interval=0.0, settings=record))
    await frontier.put("books-1", [task_for(f"https://a.test/{number}", lane="a.test") for number in range(3)])
    leases = (await frontier.lease(["books-1"], 2, worker="w", seconds=60.0, horizon=0.0)).leases
    await frontier.settle([Dead(lease=lease, reason="http_404") for lease in leases])
    await frontier.close()
    store = await SqliteStore.open("shoal.db")
    await store.write([item("a", data={"n": 1}, crawl="books-1")], [])
    await store.close()
    archive = await open_archive("pages", create=True)
    await archive.write([raw_page(b"page")])
    await archive.close()


def answer(*arguments: str) -> Any:
    result = CliRunner().invoke(shoal, [*arguments, "--json"])
    assert result.exit_code == 0, result.output + repr(result.exception)
    (line,) = result.stdout.splitlines()
    document = json.loads(line)
    if fields := fields_in_help(arguments):
        assert list(document) == fields
    return document


def fields_in_help(arguments: tuple[str, ...]) -> list[str]:
    """The fields of the document, as far as the command's help names them."""
    name = next(name for name in (" ".join(arguments[:2]), arguments[0]) if name in ALL)
    (option,) = [one for one in ALL[name].params if isinstance(one, click.Option) and "--json" in one.opts]
    _, _, fields = (option.help or "").rstrip(".").partition(": ")
    return fields.split(", ") if fields else []


@pytest.mark.parametrize("name", ["pause", "resume", "cancel", "pace", "export", "warc", "dead requeue", "store tidy"])
def test_help_names_the_fields_of_the_document(name: str) -> None:
    assert fields_in_help(tuple(name.split()))


def test_a_crawl_that_is_steered_is_told_as_it_is_then(crawl: str) -> None:
    shape = {"crawl": crawl, "left": 1, "in_flight": 0, "cancelled": 0}
    assert answer("pause") == {**shape, "state": "paused"}
    assert answer("resume", crawl) == {**shape, "state": "running"}
    assert answer("cancel", crawl) == {**shape, "state": "cancelled", "left": 0, "cancelled": 1}


def test_a_pace(crawl: str) -> None:
    assert answer("pace", "a.test", "30/m") == {
        "crawl": crawl,
        "lane": "a.test",
        "rate": "30/m",
        "is_known": True,
        "near": [],
    }


def test_dead_letters_that_are_requeued_or_dropped(crawl: str) -> None:
    assert answer("dead", "requeue", "--url", "https://a.test/0") == {"crawl": crawl, "requeued": 1}
    assert answer("dead", "drop") == {"crawl": crawl, "dropped": 1}
    assert answer("dead", "list") == []


def test_an_export_tells_what_it_wrote(crawl: str) -> None:
    wrote = {"output": "a.csv", "spider": "books", "crawl": crawl, "versions": False, "number": 1, "yielded": 0}
    wrote["elsewhere"] = {}
    assert answer("export", "-o", "a.csv") == wrote
    assert answer("export", "--spider", "books", "-o", "a.csv") == {**wrote, "crawl": None}


def test_a_store_that_is_made_ready_or_tidied(crawl: str) -> None:
    assert answer("store", "init") == {"store": "shoal.db", "ready": True}
    assert answer("store", "tidy", "--retention", "7d") == {
        "store": "shoal.db",
        "retention_seconds": 604_800.0,
        "dropped": 0,
        "moved": 0,
        "archive": None,
        "versions_seconds": 0.0,
        "versions_dropped": 0,
    }


def test_a_warc_file(crawl: str) -> None:
    (known,) = asyncio.run(_archived())
    assert answer("warc", known, "-o", "a.warc.gz", "--archive", "pages") == {
        "crawl": known,
        "pages": 1,
        "output": "a.warc.gz",
    }


async def _archived() -> list[str]:
    archive = await open_archive("pages")
    try:
        return list(await archive.crawls())
    finally:
        await archive.close()


@pytest.mark.parametrize(
    "arguments",
    [
        ("export",),
        ("run", "books.py"),
        ("crawl", "http://127.0.0.1:1/"),
        ("replay", "books.py", "--archive", "pages"),
    ],
    ids=lambda words: words[0],
)
def test_items_on_stdout_and_a_document_there_are_refused_together(crawl: str, arguments: tuple[str, ...]) -> None:
    Path("books.py").write_text("import shoal\nclass Books(shoal.Spider):\n    start = ['http://127.0.0.1:1/']\n")
    before = answer("status")
    result = CliRunner().invoke(shoal, [*arguments, "-o", "-", "--json"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "-o - and --json would both write to standard output: give -o a file" in result.stderr
    assert len(answer("status")) == len(before)
