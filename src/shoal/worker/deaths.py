"""When a worker process counts as hung, how it died, which pages are suspects, and when it is restarted."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from shoal.frontier.base import Frontier
from shoal.frontier.rules.tasks import NO_LEASE
from shoal.text.secrets import masked
from shoal.worker.black_box import BlackBox, Reading, RunningPage
from shoal.worker.outages import until_reachable
from shoal.worker.workers import SILENT_SECONDS

# A silence longer than this is reported, though it may be legitimate.
SAID_SECONDS: Final = 10.0
SHORTEST_MARGIN_SECONDS: Final = 3.0
# If no handler runs, something else blocks the event loop: it may take this many times longer.
WITHOUT_HANDLER: Final = 10.0
# At most this much counts between two readings: a later reader was stopped, asleep or starved itself.
LONGEST_LOOK_SECONDS: Final = 2.0


class Pulse:
    """How long a black box has not moved, without the time in which its process or the reader was stopped."""

    def __init__(self) -> None:
        self.silent = 0.0
        self._moves = -1

    def add(self, reading: Reading, *, elapsed: float, is_stopped: bool = False) -> None:
        """Add a reading, `elapsed` seconds after the one before."""
        if reading.moves != self._moves:
            self._moves, self.silent = reading.moves, 0.0
        elif not is_stopped:
            self.silent += min(elapsed, LONGEST_LOOK_SECONDS)


def longest_silence(reading: Reading) -> float | None:
    """How long the process may be silent before it counts as hung; None: without limit."""
    if not reading.patience:
        return None
    longest = reading.patience + max(reading.patience / 2, SHORTEST_MARGIN_SECONDS)
    return longest if reading.running else WITHOUT_HANDLER * longest


def said_after(reading: Reading) -> float:
    """How long the process may be silent before that is reported."""
    longest = longest_silence(reading) or float("inf")
    return min(SAID_SECONDS, longest) if reading.running else longest


class HangDetector:
    """Watches one process: reports on which page it is silent, and decides when it counts as hung."""

    def __init__(self, who: str, *, say: Callable[[str], None]) -> None:
        self._who = who
        self._say = say
        self._pulse = Pulse()
        self._has_said = False

    def check(self, reading: Reading, *, elapsed: float, is_stopped: Callable[[], bool]) -> str:
        """Add a reading, `elapsed` seconds after the one before. Returns why the process counts as hung; "": it does
        not."""
        pulse = self._pulse
        pulse.add(reading, elapsed=elapsed, is_stopped=pulse.silent > 0 and is_stopped())
        silent = f"silent for {pulse.silent:.0f} s"
        if pulse.silent < said_after(reading):
            self._has_said = False
        elif not self._has_said:
            self._has_said = True
            where = next(iter(reading.suspects), None)
            sits = f": {where.who} sits on {masked(where.url)}" if where else ""
            self._say(f"{self._who} is {silent}{sits}")
        limit = longest_silence(reading)
        return silent if limit is not None and pulse.silent >= limit else ""


FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0
# Deaths in a row without a settled page in between: with a suspect page each, and without.
MOST_DEATHS: Final = 50
MOST_DEATHS_AT_ONCE: Final = 8
SILENT: Final = "silent for "  # how the cause begins when a process hung


class Death(NamedTuple):
    """The abnormal end of a process: its cause, its workers, the pages that may have killed it, and its id."""

    cause: str
    workers: tuple[str, ...]
    suspects: tuple[RunningPage, ...] = ()
    settled: int = 0
    pid: int = 0

    def tokens_of(self, worker: str) -> list[int]:
        """The suspect leases of this worker. Not those of the process's other workers: they work on other crawls, whose
        leases may have the same tokens (see `Frontier.evict`)."""
        return [page.token for page in self.suspects if page.worker == worker] or [NO_LEASE]

    @property
    def sentence(self) -> str:
        """What happened to the process, the consequence, and which pages its handlers ran on."""
        end = f"was {self.cause} and was killed" if self.cause.startswith(SILENT) else f"ended with {self.cause}"
        return f"{end}; its tasks are queued again, a new one starts{self.pages}"

    @property
    def pages(self) -> str:
        """Which pages its handlers ran on, as the end of a sentence; empty: none."""
        return f"; {described(self.suspects)}" if self.suspects else ""


class Watched(NamedTuple):
    """A supervised process: its black box, and the deaths of the processes before it.

    `has_begun`: one of those began the crawl, which this one resumes; `began`: when the first was started (monotonic);
    `pages_before`: how many pages of the crawl had ended then."""

    box: BlackBox
    former: tuple[Death, ...] = ()
    has_begun: bool = False
    began: float = 0.0
    pages_before: int = 0


def death_of(code: int, reading: Reading, *, cause: str = "") -> Death | None:
    """The death of a process with this return code (negative: a signal); None: it ended by itself."""
    if code >= 0 and (reading.has_ended or not reading.moves):
        return None
    return Death(cause or ending(code), reading.workers, reading.suspects, reading.settled)


def ending(code: int) -> str:
    """How a process died: SIGSEGV, os._exit(1)."""
    if code >= 0:
        return f"os._exit({code})"
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"


def described(pages: tuple[RunningPage, ...]) -> str:
    """Which handlers ran on which pages: its handler parse was on https://…"""
    first = f"{pages[0].who} was on {masked(pages[0].url)}"
    return first if len(pages) == 1 else f"{first}, {len(pages) - 1} others were running"


class RestartBackoff:
    """The pause before a process that died is restarted: it grows only while processes die at once."""

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE_SECONDS
        self._on_pages = 0
        self._at_once = 0

    def after(self, death: Death, *, lived: float) -> float | None:
        """The pause after this death of a process that lived so many seconds; None: give up."""
        if death.settled or lived > LONGEST_PAUSE_SECONDS:
            self._pause, self._on_pages, self._at_once = FIRST_PAUSE_SECONDS, 0, 0
            return FIRST_PAUSE_SECONDS
        if death.suspects:
            # The page is leased alone from now on, and given up when its attempts are used up.
            self._on_pages += 1
            return FIRST_PAUSE_SECONDS if self._on_pages < MOST_DEATHS else None
        self._at_once += 1
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return pause if self._at_once < MOST_DEATHS_AT_ONCE else None


async def reclaim_former(watched: Watched | None, *, frontier: Frontier, say: Callable[[str], None]) -> None:
    """Reclaim the leases of the processes before this one; the pages that may have killed them are leased alone."""
    if watched is None:
        return
    for death in watched.former:
        for worker in death.workers:
            await evict(worker, death, frontier=frontier, say=say)
    if watched.former:
        pids = {worker: death.pid for death in watched.former for worker in death.workers}
        await until_reachable(lambda: sign_off(pids, frontier=frontier), say=say)
    watched.box.reclaim()


async def sign_off(pids: Mapping[str, int], *, frontier: Frontier) -> None:
    """Make workers that died count as gone at once. `pids`: the dead process of each worker; 0: as in its heartbeat.

    The heartbeats of a supervised worker name the supervisor, which lives on: from here on they name the dead
    process."""
    for beat in await frontier.workers(within=SILENT_SECONDS):
        if (pid := pids.get(beat.worker)) is not None and not beat.left:
            own = pid or beat.pid
            await frontier.beat(msgspec.structs.replace(beat, pid=own, slots=0, busy=0, troubles=()))


async def evict(worker: str, death: Death, *, frontier: Frontier, say: Callable[[str], None]) -> None:
    """Reclaim the leases of a worker whose process died."""
    suspects = death.tokens_of(worker)
    await until_reachable(lambda: frontier.evict(worker, suspects=suspects, cause=death.cause), say=say)
