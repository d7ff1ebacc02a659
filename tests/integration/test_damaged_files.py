"""Copies of a `shoal.db`, each damaged in a way of its own: every command says in one line that the file is damaged."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from shoal.cli.main import shoal
from shoal.crawl.record import CrawlRecord
from shoal.errors import StorageError
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.model import Crawl, Dead, DeadFilter, Done, Heartbeat
from shoal.settings.table import Settings
from shoal.store.sqlite.store import SqliteStore
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.contract.store.rows import fetch, item

PAGE = 4096
COMMANDS = [
    ["status"],
    ["status", "--json"],
    ["export", "-o", "out.jsonl"],
    ["dead", "list"],
    ["why", "https://a.test/3"],
    ["sql", "SELECT * FROM items"],
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a crawl in its middle: tasks of every state, workers, items, a log."""

    async def fill(path: Path) -> None:
        frontier, store = await SqliteFrontier.open(path), await SqliteStore.open(path)
        settings = msgspec.to_builtins(CrawlRecord(settings=Settings()))
        await frontier.open_crawl(Crawl(id="s-1", spider="s", interval=0.0, cap=400, settings=settings))
        await frontier.put("s-1", [make_task(number) for number in range(300)])
        leases = (await frontier.lease(["s-1"], 100, worker="w", seconds=60.0, horizon=1.0)).leases
        await frontier.settle([Done(lease=lease, notes={"items": 1}) for lease in leases[:50]])
        await frontier.settle([Dead(lease=lease, reason="http_500: é", detail="x" * 99) for lease in leases[50:90]])
        await frontier.beat(Heartbeat(worker="w", crawl="s-1", host="h", pid=1, version="1", slots=8))
        rows = [item(str(number), spider="s", crawl="s-1", data={"title": f"é {number}" * 20}) for number in range(200)]
        await store.write(rows, [fetch(number, crawl="s-1") for number in range(200)])
        await store.close()
        await frontier.close()

    path = tmp_path_factory.mktemp("whole") / "shoal.db"
    asyncio.run(fill(path))
    return path


def flipped(octets: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice([1, 20, 400])):
        octets[rng.randrange(len(octets))] ^= 1 << rng.randrange(8)


def cut(octets: bytearray, rng: random.Random) -> None:
    del octets[rng.randrange(1, len(octets)) :]


def zeroed(octets: bytearray, rng: random.Random) -> None:
    for start in rng.sample(range(0, len(octets), PAGE), 3):
        octets[start : start + PAGE] = bytes(PAGE)


def swapped(octets: bytearray, rng: random.Random) -> None:
    one, other = rng.sample(range(0, len(octets) - PAGE, PAGE), 2)
    octets[one : one + PAGE], octets[other : other + PAGE] = octets[other : other + PAGE], octets[one : one + PAGE]


def overwritten(octets: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(octets) - 3000)
    octets[start : start + 3000] = rng.randbytes(3000)


def misspelled(octets: bytearray, rng: random.Random) -> None:
    """Letters become bytes that are no text."""
    for start in range(0, len(octets), PAGE):
        for _ in range(20):
            index = start + rng.randrange(PAGE)
            if 32 <= octets[index] < 127:
                octets[index] = rng.randrange(128, 256)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 4))])
@pytest.mark.parametrize("harm", [flipped, cut, zeroed, swapped, overwritten, misspelled])
def test_a_damaged_file_gives_one_line_and_never_a_traceback(
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    harm: Callable[[bytearray, random.Random], None],
) -> None:
    monkeypatch.chdir(tmp_path)
    octets = bytearray(whole.read_bytes())
    harm(octets, random.Random(seed))
    for command in COMMANDS:
        for ending in ("-wal", "-shm"):
            Path(f"shoal.db{ending}").unlink(missing_ok=True)
        Path("shoal.db").write_bytes(octets)
        result = CliRunner().invoke(shoal, command)
        assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exception)
        assert result.exit_code in (0, 1, 2), (command, result.output)
        lines = [line for line in result.stderr.splitlines() if line.startswith("shoal: ")]
        assert len(lines) == (result.exit_code != 0), (command, result.stderr)


async def test_a_text_that_is_none_is_called_damage(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    shutil.copy(whole, path)
    octets = bytearray(path.read_bytes())
    octets[:] = octets.replace(b"http_500", b"http\xff500")
    path.write_bytes(octets)
    frontier = await SqliteFrontier.open(path)
    with pytest.raises(StorageError, match=r"shoal\.db is damaged: restore a copy; or save what `shoal export` can"):
        await frontier.dead("s-1", DeadFilter())
    await frontier.close()
