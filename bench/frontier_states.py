"""Frontiers that know many URLs, grown once through their own verbs and kept under bench/.work for the next run."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import msgspec

from bench.crawlers import WORK, fresh_folder
from bench.frontier_subject import LANES, PUTS, Subject
from bench.progress import telling
from bench.redis_server import redis_server
from shoal.frontier.redis.scripts import LAYOUT_VERSION
from shoal.sqlite_file import VERSIONS

STATES = WORK / "frontier-states"
WAVE = 100_000
BLOOM = "bloom:0.001"
KINDS = {"SQLite": "exact", "Redis": "exact", "Redis, Bloom": BLOOM}


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Half of the tasks are finished, the other half wait. Bytes are per URL. A Bloom filter has `denied` some."""

    kind: str
    known: int
    finished_bytes: float
    waiting_bytes: float
    denied: int
    seconds: float

    @property
    def folder(self) -> Path:
        return folder_of(self.kind, self.known)


def folder_of(kind: str, known: int) -> Path:
    """Where a state is kept; a frontier that lays its data out anew gets a new one."""
    version = VERSIONS["frontier"] if kind == "SQLite" else LAYOUT_VERSION
    return STATES / f"{kind.lower().replace(', ', '-')}-{known}-layout-{version}"


def prepared(kind: str, known: int) -> State:
    """The state, made if it is not there."""
    folder = folder_of(kind, known)
    with contextlib.suppress(OSError):
        return msgspec.json.decode((folder / "state.json").read_bytes(), type=State)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with telling(f"{kind}: growing a frontier of {known:,} known URLs under {folder}"):
        state = asyncio.run(_made(kind, known, folder=folder))
    # Last: a state without this file is not whole.
    (folder / "state.json").write_bytes(msgspec.json.encode(state))
    return state


@contextlib.asynccontextmanager
async def opened(state: State) -> AsyncIterator[Subject]:
    """A copy of the state, to be measured."""
    folder = fresh_folder(f"frontier-run-{state.folder.name}")
    dedup = KINDS[state.kind]
    try:
        if state.kind == "SQLite":
            shutil.copy(state.folder / "shoal.db", folder)
            subject = await Subject.open(str(folder / "shoal.db"), known=state.known)
            yield subject
            await subject.close()
        else:
            with redis_server(folder / "redis", dump=state.folder / "dump.rdb") as server:
                subject = await Subject.open(server.url, server, known=state.known, dedup=dedup)
                yield subject
                await subject.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _made(kind: str, known: int, *, folder: Path) -> State:
    if kind == "SQLite":
        path = folder / "shoal.db"
        return await _grown(kind, known, await Subject.open(str(path)), used=lambda: sqlite_bytes(path))
    # The append-only file would be written for hours of a crawl in a few minutes; the dump at the end is enough.
    with redis_server(folder / "redis", "--appendonly", "no") as server:
        subject = await Subject.open(server.url, server, dedup=KINDS[kind])
        state = await _grown(kind, known, subject, used=lambda: server.used_bytes)
        server.save()
        shutil.move(folder / "redis" / "dump.rdb", folder / "dump.rdb")
    shutil.rmtree(folder / "redis")
    return state


async def _grown(kind: str, known: int, subject: Subject, *, used: Callable[[], int]) -> State:
    started = time.perf_counter()
    await subject.load_scripts()
    await asyncio.sleep(1)
    empty, half, new = used(), known // 2, 0
    while subject.known < half:
        wave = await subject.grow(min(WAVE, half - subject.known), block=PUTS)
        await subject.finish(wave, batch=1000)
        new += wave
    # Tables that shrank are tidied up by the server's own timer.
    await asyncio.sleep(1)
    finished = used()
    new += await subject.grow(known - half, block=max(1, min(PUTS, half // LANES)))
    waiting = used()
    await subject.close()
    return State(
        kind=kind,
        known=known,
        finished_bytes=(finished - empty) / half,
        waiting_bytes=(waiting - finished) / (known - half),
        denied=known - new,
        seconds=time.perf_counter() - started,
    )


def sqlite_bytes(path: Path) -> int:
    """Bytes of the pages that hold something: those of ended tasks are free and used again."""
    with closing(sqlite3.connect(path)) as database:
        (pages,), (free,), (size,) = (
            database.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count", "page_size")
        )
    return int((pages - free) * size)
