"""The workers of a crawl: working, left, or gone without a farewell heartbeat."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from shoal.frontier.base import Frontier
from shoal.model import Heartbeat
from shoal.worker.machine import is_running, this_machine

# A worker sends a heartbeat every second.
SILENT_SECONDS = 10.0


class Presence(enum.StrEnum):
    WORKING = "working"
    LEFT = "left"
    GONE = "gone"


class Member(msgspec.Struct, frozen=True):
    """A worker of a crawl: its last heartbeat, and whether it still works."""

    beat: Heartbeat
    presence: Presence


async def workers_of(crawl: str, *, frontier: Frontier) -> list[Member]:
    """The latest workers of a crawl: working ones first, then the newest."""
    before = {beat.worker for beat in await frontier.workers_of(crawl)}
    heard = {beat.worker for beat in await frontier.workers(within=SILENT_SECONDS) if beat.crawl == crawl}
    # Read again: a worker that left or joined between the two calls is not gone.
    kept = await frontier.workers_of(crawl)
    silent = before - heard
    members = [Member(beat, presence_of(beat, is_heard=beat.worker not in silent)) for beat in kept]
    return sorted(members, key=lambda member: member.presence is not Presence.WORKING)


async def at_work(crawl: str, *, frontier: Frontier) -> list[Heartbeat]:
    """The workers that work on a crawl now."""
    return [member.beat for member in await workers_of(crawl, frontier=frontier) if member.presence is Presence.WORKING]


def is_at_work(beat: Heartbeat) -> bool:
    """Whether a worker with a recent heartbeat still works."""
    return presence_of(beat, is_heard=True) is Presence.WORKING


def crawls_beside(mine: Sequence[Heartbeat], workers: Sequence[Heartbeat]) -> list[str]:
    """The other crawls for which the processes of these workers have requests in flight now."""
    processes = {(worker.machine, worker.pid) for worker in mine}
    own = {worker.crawl for worker in mine}
    here = [beat for beat in workers if (beat.machine, beat.pid) in processes]
    return sorted({beat.crawl for beat in here if beat.busy and is_at_work(beat)} - own)


def presence_of(beat: Heartbeat, *, is_heard: bool) -> Presence:
    """`is_heard`: the worker's heartbeat is recent. A worker of this machine whose process ended is gone anyway."""
    if beat.left:
        return Presence.LEFT
    has_ended = beat.machine == this_machine() and not is_running(beat.pid)
    return Presence.WORKING if is_heard and not has_ended else Presence.GONE
