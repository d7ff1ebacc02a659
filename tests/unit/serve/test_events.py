"""What is watched is read once, however many watch it."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

from shoal.serve.events import Channel, event
from shoal.testing.waiting import eventually, loop_turns


class Source:
    """What a channel reads, when a test lets it."""

    def __init__(self) -> None:
        self.reads = 0
        self.go = asyncio.Event()

    async def read(self) -> dict[str, Any]:
        self.reads += 1
        await self.go.wait()
        return {"crawls": self.reads}


async def test_one_reader_for_many_browsers() -> None:
    source = Source()
    channel = Channel(source.read)
    wakes = [asyncio.Event() for _ in range(20)]
    with ExitStack() as stack:
        for wake in wakes:
            stack.enter_context(channel.heard_by(wake))
        await loop_turns()
        assert source.reads == 1
        source.go.set()
        await eventually(lambda: all(wake.is_set() for wake in wakes))
        assert channel.latest == {"crawls": b"1"}
    assert not channel.is_heard
    await channel.close()


async def test_what_did_not_change_wakes_nobody() -> None:
    reads = 0

    async def read() -> dict[str, Any]:
        nonlocal reads
        reads += 1
        return {"problems": []}

    channel, wake = Channel(read), asyncio.Event()
    with channel.heard_by(wake):
        await wake.wait()
        wake.clear()
        await eventually(lambda: reads >= 3)
        assert not wake.is_set()
    await channel.close()


def test_a_text_cannot_end_an_event() -> None:
    assert event("crawl", b'{"a":"b\\n\\nevent: x"}') == b'event: crawl\ndata: {"a":"b\\n\\nevent: x"}\n\n'
