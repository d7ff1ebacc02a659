"""What is done to a crawl, and when: decided by a seed before it begins."""

from __future__ import annotations

import enum
import random
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal.crawl.opening import Places
from shoal.settings.table import Settings
from shoal.testing.chaos.bad_pages import BadPages, choose

# The graph is on several hosts, so that links cross lanes. The rate per host, for the whole fleet: fast enough for a
# run of seconds, slow enough for two cores that also serve the site and start interpreters.
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
RATE = 40
# Pages link to two others, in the first half to pages with few other links: so a lost link shows.
LINKS = 2
PAGES_PER_KILL = 180
FEWEST_PAGES = 900
# One page in this many is apart: no link leads there, it is fed.
APART_EVERY = 10
# One page in this many is in reserve: also apart, and fed after the last deed.
RESERVE_EVERY = 10
# Long enough not to lose a busy worker, short enough to wait for.
LEASE_SECONDS = 2.0
FREEZE_SECONDS = LEASE_SECONDS + 1.5
STALL_SECONDS = LEASE_SECONDS + 1.5
# Far longer than a handler takes on a busy machine, short enough to replace hanging workers soon.
HANDLER_SECONDS = 2.0
# A lease lost together with others is free; one lost alone uses an attempt, and kills may hit a suspect twice in a run.
MAX_ATTEMPTS = 3
# A fleet waits twice as long before each start of a worker: after this many kills a new fleet begins.
KILLS_PER_WORKER = 4
KILLS_PER_RESTART = 5
# The share of the crawl in which deeds are done: while there is work.
FIRST_SHARE, LAST_SHARE = 0.04, 0.85


class Deed(enum.StrEnum):
    """A deed; the value is its name in `--deeds`."""

    KILL = "kill"
    FREEZE = "freeze"
    STRAGGLE = "late"
    RESTART = "restart"
    STALL = "stall"
    RESET = "reset"
    CLOCK = "clock"
    FEED = "feed"
    DEADLY = "deadly"
    HANG = "hang"
    BACKEND = "backend"
    STORE_RESTART = "store-restart"
    BROKER = "broker"
    COORDINATOR = "coordinator"
    RELIEVE = "relieve"


# RELIEVE cannot be chosen: it follows from the kills.
CHOICE = tuple(deed for deed in Deed if deed is not Deed.RELIEVE)


class Event(NamedTuple):
    """One deed, due when this many pages are done."""

    at: int
    deed: Deed


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One chaos run. `folder` holds the site's log and the store; `spider` is loaded by the workers. With a `pipe`,
    workers reach the frontier only through it.

    `deadly` and `hanging` pages harm each worker; as many more harm only the first one. Each of several `crawls` has
    its own spider and `workers`; the first crawl has all pages, the others those that need not be fed. `left_out`:
    deeds that cannot be done here, and why."""

    folder: Path
    frontier: str
    store: str = ""
    pipe: str = ""
    kills: int = 10
    freezes: int = 1
    stragglers: int = 1
    restarts: int = 0
    stalls: int = 0
    resets: int = 0
    clock_steps: int = 0
    dead_feeders: int = 0
    deadly: int = 0
    hanging: int = 0
    backends: int = 0
    store_restarts: int = 0
    brokers: int = 0
    coordinators: int = 0
    workers: int = 3
    crawls: int = 1
    pages: int = PAGES_PER_KILL * 10
    seed: int = 1
    rate: int = RATE
    spider: str = "shoal.testing.chaos.graph_spider:Graph"
    left_out: tuple[str, ...] = ()

    @property
    def backend(self) -> str:
        """The frontier's kind: its URL may hold a password."""
        return _kind_of(self.frontier)

    @property
    def store_backend(self) -> str:
        return _kind_of(self.places.store)

    @property
    def places(self) -> Places:
        return Places(frontier=self.frontier, store=self.store or str(self.folder / "shoal.db"))

    @property
    def worker_places(self) -> Places:
        """The places for the workers."""
        return msgspec.structs.replace(self.places, frontier=self.pipe or self.frontier)

    @property
    def apart(self) -> int:
        """The number of pages that have to be fed, because no link leads there."""
        fed = self.pages // APART_EVERY if self.dead_feeders or self.deadly or self.hanging else 0
        return fed + len(self.reserve)

    @property
    def parts(self) -> tuple[range, range]:
        """The pages apart that are not in reserve: one part for each of two feeders."""
        first, last = self.pages - self.apart, self.reserve.start
        middle = (first + last) // 2
        return range(first, middle), range(middle, last)

    @property
    def reserve(self) -> range:
        """The pages apart that are fed after the last deed."""
        return range(self.pages - self.pages // RESERVE_EVERY, self.pages)

    @property
    def shared(self) -> list[int]:
        """The pages of every crawl: linked pages and the reserve."""
        return [*range(self.pages - self.apart), *self.reserve]

    @property
    def tasks(self) -> int:
        """The pages of all crawls together."""
        return self.pages + (self.crawls - 1) * len(self.shared)


def pages_for(kills: int) -> int:
    """Enough pages for that many kills."""
    return max(FEWEST_PAGES, PAGES_PER_KILL * kills)


def with_deeds(plan: Plan, deeds: Iterable[Deed], *, steerable: Iterable[Deed]) -> Plan:
    """The plan with only these deeds, in default numbers. A deed to a server needs a `steerable` server."""
    chosen, ours = set(deeds), set(steerable)
    wanted = chosen & ours
    often = {
        "restarts": max(1, plan.kills // KILLS_PER_RESTART) * (Deed.RESTART in wanted),
        "stalls": int(Deed.STALL in wanted),
        "resets": 3 * (Deed.RESET in wanted),
        "clock_steps": 2 * (Deed.CLOCK in wanted),
        "backends": 2 * (Deed.BACKEND in wanted),
        "store_restarts": int(Deed.STORE_RESTART in wanted),
        "brokers": int(Deed.BROKER in wanted),
        "coordinators": 2 * (Deed.COORDINATOR in wanted),
    }
    return msgspec.structs.replace(
        plan,
        kills=plan.kills * (Deed.KILL in chosen),
        freezes=int(Deed.FREEZE in chosen),
        stragglers=int(Deed.STRAGGLE in chosen),
        dead_feeders=int(Deed.FEED in chosen),
        deadly=2 * (Deed.DEADLY in chosen),
        hanging=int(Deed.HANG in chosen),
        **often,
    )


def schedule(plan: Plan) -> list[Event]:
    """The deeds in random order, at random distances over the crawl."""
    rng = random.Random(plan.seed)
    deeds = [Deed.KILL] * plan.kills + [Deed.RESTART] * plan.restarts
    rng.shuffle(deeds)
    for deed, number in ((Deed.FREEZE, plan.freezes), (Deed.FEED, plan.dead_feeders)):
        for _ in range(number):
            # Early: a stopped worker should continue, and a feeder restart, while others are still at work.
            deeds.insert(rng.randint(0, len(deeds) // 2), deed)
    anytime = {
        Deed.STALL: plan.stalls,
        Deed.RESET: plan.resets,
        Deed.CLOCK: plan.clock_steps,
        Deed.BACKEND: plan.backends,
        Deed.STORE_RESTART: plan.store_restarts,
        Deed.BROKER: plan.brokers,
        Deed.COORDINATOR: plan.coordinators,
    }
    for deed, number in anytime.items():
        for _ in range(number):
            deeds.insert(rng.randint(0, len(deeds)), deed)
    deeds = [Deed.STRAGGLE] * plan.stragglers + _with_reliefs(deeds, every=_kills_per_fleet(plan))
    step = (LAST_SHARE - FIRST_SHARE) / max(1, len(deeds))
    shares = [FIRST_SHARE + (index + rng.random()) * step for index in range(len(deeds))]
    return [Event(int(share * plan.pages), deed) for share, deed in zip(shares, deeds, strict=True)]


def bad_pages(plan: Plan) -> BadPages:
    """The pages that harm their workers. Pages that always do are apart: no other page is reached only by them."""
    slow, other = plan.parts
    first, last = plan.pages // 20, plan.pages // 3
    return choose(
        random.Random(f"{plan.seed}/bad"),
        deadly=plan.deadly,
        hanging=plan.hanging,
        # From the half of each part that is fed early: a page that hangs at the end makes a run long.
        always=[*slow[: len(slow) // 2], *other[: len(other) // 2]],
        once=range(first, last),
    )


def settings_for(plan: Plan, *, lanes: tuple[str, ...]) -> Settings:
    """Short leases, few attempts, and none of the user's settings."""
    return Settings(
        rate=f"{plan.rate}/s",
        per_host=64,
        pace="fixed",
        allow=lanes,
        allow_private=True,
        max_per_shape=0,
        max_attempts=MAX_ATTEMPTS,
        retry_seconds=0.2,
        lease_seconds=LEASE_SECONDS,
        handler_seconds=HANDLER_SECONDS,
        grace_seconds=3.0,
        # A killed or stopped worker should have finished pages in hand.
        flush_pages=64,
        flush_seconds=0.5,
    )


def _kind_of(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    return scheme if separator else "sqlite"


def _kills_per_fleet(plan: Plan) -> int:
    """After how many kills a new fleet begins; bad pages end workers, too."""
    ends = (1 + MAX_ATTEMPTS + 1) * (plan.deadly + plan.hanging)
    return max(1, KILLS_PER_WORKER * plan.workers * plan.kills // max(1, plan.kills + ends))


def _with_reliefs(deeds: list[Deed], *, every: int) -> list[Deed]:
    result: list[Deed] = []
    for deed in deeds:
        kills = result.count(Deed.KILL)
        if deed is Deed.KILL and kills and kills % every == 0:
            result.append(Deed.RELIEVE)
        result.append(deed)
    return result
