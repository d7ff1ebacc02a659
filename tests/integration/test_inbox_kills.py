"""A worker that is killed at any step between an inbox and the frontier: every entry is there, and none twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.crawl.inbox import BATCH
from shoal.frontier import open_frontier
from shoal.model import DeadFilter
from shoal.testing.servers.redis_server import RedisServer

SECONDS = 60.0
SCRIPT = Path(__file__).with_name("dying_taker.py")
URLS = 2 * BATCH + 10
BAD = ['{"url": 3}', '{"url": "https://a.test/", "prority": 1}', "no url"]
# (part, verb, before or after the call, which call)
STEPS = [
    ("inbox", "take", "after", 1),
    ("frontier", "open_crawl", "before", 1),
    ("frontier", "open_crawl", "after", 1),
    ("frontier", "set_state", "after", 1),
    ("frontier", "bury", "after", 1),
    ("frontier", "put", "before", 1),
    ("frontier", "put", "after", 1),
    ("inbox", "forget", "before", 1),
    ("inbox", "forget", "after", 1),
    ("inbox", "take", "after", 3),
    ("frontier", "put", "before", 3),
    ("frontier", "put", "after", 3),
    ("inbox", "forget", "after", 3),
]


def cases() -> list[Any]:
    """In `make test`: after the tasks are put, and before the entries are forgotten."""
    short = {("frontier", "put", "after", 1), ("inbox", "forget", "before", 1)}
    return [pytest.param(step, marks=[] if step in short else pytest.mark.full) for step in STEPS]


def run(url: str, folder: Path, *step: object) -> int:
    words = [str(word) for word in step] or ["", "", "", "0"]
    result = subprocess.run(
        [sys.executable, str(SCRIPT), url, str(folder), *words],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")},
        check=False,
        timeout=SECONDS,
        capture_output=True,
        text=True,
    )
    assert "Error" not in result.stderr, result.stderr
    return result.returncode


@pytest.mark.parametrize("place", ["sqlite", "redis"])
@pytest.mark.parametrize("step", cases(), ids=lambda step: "-".join(map(str, step)))
async def test_entries_are_taken_once_whenever_their_taker_dies(
    step: tuple[str, str, str, int], place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    lines = [*(json.dumps({"url": f"https://a.test/{number}", "delay": 60}) for number in range(URLS)), *BAD]
    url = str(tmp_path / "shoal.db")
    if place == "redis":
        redis: RedisServer = request.getfixturevalue("redis")
        redis.call("FLUSHALL")
        url = redis.url
        redis.call("LPUSH", "shoal:inbox:books", *BAD, *lines[:URLS])
    else:
        (tmp_path / "books").mkdir()
        (tmp_path / "books" / "a.txt").write_text("\n".join([*BAD, *lines[:10]]))
        (tmp_path / "books" / "b.txt").write_text("\n".join(lines[10:URLS]))
    assert run(url, tmp_path, *step) == -signal.SIGKILL
    assert run(url, tmp_path) == 0
    frontier = await open_frontier(url)
    try:
        (crawl,) = await frontier.crawls()
        progress = await frontier.progress(crawl.id)
        assert (crawl.id, progress.state, progress.delayed) == ("books-1", "running", URLS)
        assert len(await frontier.dead("books-1", DeadFilter())) == progress.dead == len(BAD)
    finally:
        await frontier.close()
