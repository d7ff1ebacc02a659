"""What is to be done to a crawl, and when: decided by a seed, before it begins."""

from __future__ import annotations

import enum
import random
from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal.processes.opening import Places
from shoal.settings import Settings

# The graph lives on several hosts, so that links cross lanes. Per host, for the whole fleet: fast enough for a run of
# seconds, slow enough that two cores which also serve the site and start interpreters keep up.
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
RATE = 40
# The graph's pages link to two others, in the first half to pages that few others link to: a link that is lost shows.
LINKS = 2
PAGES_PER_KILL = 180
FEWEST_PAGES = 900
# Long enough that a busy worker is not taken for a lost one, short enough to be waited out.
LEASE_SECONDS = 2.0
FREEZE_SECONDS = LEASE_SECONDS + 1.5
# A fleet waits twice as long before each new start of a worker: after so many a new fleet begins.
KILLS_PER_WORKER = 4
# The part of the crawl in which things happen: not before there is work, nor when there is none left.
FIRST_SHARE, LAST_SHARE = 0.04, 0.85


class Deed(enum.StrEnum):
    KILL = "kill"
    FREEZE = "freeze"
    STRAGGLE = "straggle"
    RELIEVE = "relieve"
    RESTART = "restart"


class Event(NamedTuple):
    """One deed, due when this many pages are done."""

    at: int
    deed: Deed


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One chaos run. `folder` takes the site's log and the store; `spider` is what the workers load."""

    folder: Path
    frontier: str
    kills: int = 10
    freezes: int = 1
    restarts: int = 0
    workers: int = 3
    pages: int = PAGES_PER_KILL * 10
    seed: int = 1
    rate: int = RATE
    spider: str = "shoal.testing.chaos.graph_spider:Graph"

    @property
    def backend(self) -> str:
        """The frontier's kind: its URL may hold a password."""
        scheme, separator, _ = self.frontier.partition("://")
        return scheme if separator else "sqlite"

    @property
    def places(self) -> Places:
        return Places(frontier=self.frontier, store=str(self.folder / "shoal.db"))


def pages_for(kills: int) -> int:
    """As many pages as give that many kills the time they need."""
    return max(FEWEST_PAGES, PAGES_PER_KILL * kills)


def schedule(plan: Plan) -> list[Event]:
    """The deeds in a random order, spread over the crawl at random distances."""
    rng = random.Random(plan.seed)
    deeds = [Deed.KILL] * plan.kills + [Deed.RESTART] * plan.restarts
    rng.shuffle(deeds)
    for _ in range(plan.freezes):
        # Not late: the stopped worker shall come back while the others are still at work.
        deeds.insert(rng.randint(0, len(deeds) // 2), Deed.FREEZE)
    deeds = [Deed.STRAGGLE, *_with_reliefs(deeds, every=KILLS_PER_WORKER * plan.workers)]
    step = (LAST_SHARE - FIRST_SHARE) / len(deeds)
    shares = [FIRST_SHARE + (index + rng.random()) * step for index in range(len(deeds))]
    return [Event(int(share * plan.pages), deed) for share, deed in zip(shares, deeds, strict=True)]


def settings_for(plan: Plan, *, lanes: tuple[str, ...]) -> Settings:
    """Short leases, and attempts that no number of kills uses up. Nothing of the user's own settings."""
    return Settings(
        rate=f"{plan.rate}/s",
        per_host=64,
        pace="fixed",
        allow=lanes,
        allow_private=True,
        max_per_shape=0,
        max_attempts=plan.kills + plan.freezes + plan.restarts + 20,
        retry_seconds=0.2,
        lease_seconds=LEASE_SECONDS,
        grace_seconds=3.0,
        # A worker that is killed or stopped shall have finished pages in hand.
        flush_pages=64,
        flush_seconds=0.5,
    )


def _with_reliefs(deeds: list[Deed], *, every: int) -> list[Deed]:
    result: list[Deed] = []
    for deed in deeds:
        kills = result.count(Deed.KILL)
        if deed is Deed.KILL and kills and kills % every == 0:
            result.append(Deed.RELIEVE)
        result.append(deed)
    return result
