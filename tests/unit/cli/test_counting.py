from __future__ import annotations

import asyncio

import pytest

from shoal.cli.display.counting import LINE_SECONDS, Counting, counting_export
from shoal.cli.display.screen import Screen


async def test_work_that_cannot_count_tells_how_long_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    now, ended = [0.0], asyncio.Event()

    async def work() -> str:
        await ended.wait()
        return "dropped"

    with Counting.on(Screen(), clock=lambda: now[0]) as counting:
        task = asyncio.create_task(counting.during(work(), "dropping old log lines"))
        await asyncio.sleep(0)
        now[0] = LINE_SECONDS + 7
        shown = ""
        while not shown:
            await asyncio.sleep(0.01)
            shown = capsys.readouterr().err
        ended.set()
        assert await task == "dropped"
    assert shown == "dropping old log lines, 12 s so far\n"


async def test_work_that_fails_or_is_cancelled_ends(capsys: pytest.CaptureFixture[str]) -> None:
    async def fail() -> None:
        raise ValueError("no")

    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    with Counting.on(Screen()) as counting:
        with pytest.raises(ValueError, match="no"):
            await counting.during(fail(), "failing")
        task = asyncio.create_task(counting.during(wait(), "waiting"))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert ended == ["cancelled"]


def test_items_on_stdout_are_not_counted_beside_them() -> None:
    with counting_export(Screen(), "-") as show:
        assert show is None
    with counting_export(Screen(), "items.csv") as show:
        assert show is not None
