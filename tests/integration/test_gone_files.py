"""Files that are deleted, moved away or replaced while shoal uses them: seen at the next write, said in one line."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from command_line import SECONDS, Folder

from shoal.archive import open_archive
from shoal.archive.base import Capture, RawPage
from shoal.errors import StorageBroken
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.model import Crawl, LaneUpdate
from shoal.store import open_store
from shoal.testing.contract.store.rows import item
from shoal.testing.sites.site_process import SiteProcess
from shoal.worker.outages import until_reachable

PRODUCTS = 40

Write = Callable[[], Awaitable[object]]
Close = Callable[[], Awaitable[None]]


async def opened(kind: str, folder: Path) -> tuple[Write, Close]:
    """A write that is done over and over, and how to end."""
    if kind == "frontier":
        frontier = await SqliteFrontier.open(folder / "shoal.db")
        await frontier.open_crawl(Crawl(id="c", spider="s"))
        return (lambda: frontier.update_lane("c", "a.test", LaneUpdate(cap=3))), frontier.close
    if kind == "archive":
        archive = await open_archive(str(folder / "raw"), create=True)
        return (lambda: archive.write([page()])), archive.close
    store = await open_store(str(folder / "shoal.db") if kind == "store" else f"files:{folder / 'items'}")
    return (lambda: store.write([item("a")], [])), store.close


def page() -> RawPage:
    url, digest = "http://a.test/", hashlib.sha256(b"x").hexdigest()
    capture = Capture(
        crawl="c", url=url, final_url=url, key=1, status=200, headers={}, at=1.0, token=1, content_hash=digest, size=1
    )
    return RawPage(capture=capture, body=b"x")


def gone(folder: Path) -> None:
    shutil.rmtree(folder)


def moved(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def replaced(folder: Path) -> None:
    """Every file is another one with the same content."""
    for path in [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("-shm")]:
        shutil.copy(path, path.with_name("copy"))
        os.replace(path.with_name("copy"), path)


@pytest.mark.parametrize("harm", [gone, moved, replaced])
@pytest.mark.parametrize("kind", ["frontier", "store", "files", "archive"])
async def test_a_write_to_a_file_that_is_gone_or_another_one_is_refused_at_once(
    tmp_path: Path, kind: str, harm: Callable[[Path], None]
) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    write, close = await opened(kind, folder)
    await write()
    harm(folder)
    said: list[str] = []
    with pytest.raises(StorageBroken, match=r"was (deleted|replaced).* while shoal (used|wrote to) it") as caught:
        await until_reachable(write, say=said.append)
    assert "\n" not in str(caught.value)
    assert said == []
    await close()


@pytest.mark.parametrize("kind", ["frontier", "store"])
@pytest.mark.parametrize("ending", ["-wal", "-shm"])
async def test_a_journal_that_is_deleted_is_noticed(tmp_path: Path, kind: str, ending: str) -> None:
    write, close = await opened(kind, tmp_path)
    await write()
    (tmp_path / f"shoal.db{ending}").unlink()
    with pytest.raises(StorageBroken, match=rf"shoal\.db{ending} was deleted or replaced .* end all processes"):
        await write()
    await close()


@pytest.mark.full
@pytest.mark.parametrize("kind", ["frontier", "store", "files", "archive"])
async def test_a_spider_may_change_the_working_directory(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write, close = await opened(kind, Path())
    await write()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    await write()
    await close()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_crawl_whose_file_is_deleted_fails_and_says_so(folder: Folder, site: SiteProcess, workers: str) -> None:
    name = folder.spider(site.url, rate="10/s")
    with folder.start("run", name, "--workers", workers) as running:
        folder.wait_for_pages(3)
        (folder.path / "shoal.db").unlink()
        out, err = running.communicate(timeout=SECONDS)
    assert running.returncode == 1
    assert "shoal.db was deleted or moved away while shoal used it: put it or a copy back, or run again" in err
    assert "says what it needs if the crawl itself is elsewhere" in err
    assert "Traceback" not in err
    assert "items" not in out
