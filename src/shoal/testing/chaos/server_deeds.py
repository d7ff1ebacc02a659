"""What `shoal chaos` does to the servers of a run, shown and counted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from shoal.testing.chaos.diary import Diary
from shoal.testing.chaos.grounds import Lever
from shoal.testing.chaos.mischief import Act
from shoal.testing.chaos.plan import Deed

SHOWN = {
    Deed.RESTART: "restart {}: the queue server is killed and started again",
    Deed.STALL: "stall {}: the frontier does not answer for longer than a lease",
    Deed.RESET: "reset {}: every line to a server is reset",
    Deed.CLOCK: "clock {}: the frontier's clock is stepped by an hour",
    Deed.BACKEND: "backend {}: PostgreSQL loses a process",
    Deed.BROKER: "restart {} of the broker: it is killed and started again",
    Deed.COORDINATOR: "restart {} of the coordinator: it is killed and started again",
    Deed.STORE_RESTART: "restart {} of PostgreSQL, as after a crash",
}


def acts_of(levers: Mapping[Deed, Lever], diary: Diary) -> dict[Deed, Act]:
    """An act for each lever."""
    return {deed: partial(_pull, deed, lever, diary) for deed, lever in levers.items()}


async def _pull(deed: Deed, lever: Lever, diary: Diary) -> None:
    diary.doing = SHOWN[deed].format(diary.done[deed] + 1)
    await lever()
    diary.done[deed] += 1
