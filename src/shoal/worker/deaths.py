"""What is known of a process that died, and when another one takes its place.

How long a process has been silent, and how long it may be: rules over readings of its black box. Pure.
"""

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

# A page that takes longer than this is said, though it may go on.
SAID_SECONDS: Final = 10.0
SHORTEST_MARGIN_SECONDS: Final = 3.0
# No handler runs: something else holds the event loop, and how long that may take is not known.
WITHOUT_HANDLER: Final = 10.0
# The longest time between two looks that counts: one who looks later was stopped, asleep or starved itself.
LONGEST_LOOK_SECONDS: Final = 2.0


class Pulse:
    """Counts for how long a black box has not moved. Time in which its process, or the one who looks, was stopped does
    not count."""

    def __init__(self) -> None:
        self.silent = 0.0
        self._moves = -1

    def look(self, reading: Reading, *, elapsed: float, is_stopped: bool = False) -> None:
        """Take in one reading, `elapsed` seconds after the one before."""
        if reading.moves != self._moves:
            self._moves, self.silent = reading.moves, 0.0
        elif not is_stopped:
            self.silent += min(elapsed, LONGEST_LOOK_SECONDS)


def longest_silence(reading: Reading) -> float | None:
    """How long the process may be silent before it counts as hung; None: as long as it likes."""
    if not reading.patience:
        return None
    longest = reading.patience + max(reading.patience / 2, SHORTEST_MARGIN_SECONDS)
    return longest if reading.running else WITHOUT_HANDLER * longest


def said_after(reading: Reading) -> float:
    """How long the process is silent before that is said."""
    longest = longest_silence(reading) or float("inf")
    return min(SAID_SECONDS, longest) if reading.running else longest


class Vigil:
    """Watches one process: says which page it sits on when it is silent, and tells when it counts as hung."""

    def __init__(self, who: str, *, say: Callable[[str], None]) -> None:
        self._who = who
        self._say = say
        self._pulse = Pulse()
        self._has_said = False

    def look(self, reading: Reading, *, elapsed: float, is_stopped: Callable[[], bool]) -> str:
        """Take in one reading, `elapsed` seconds after the one before; gives why the process counts as hung, or "" if
        it does not."""
        pulse = self._pulse
        pulse.look(reading, elapsed=elapsed, is_stopped=pulse.silent > 0 and is_stopped())
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
# Deaths in a row without a settled page in between: on a page each, and with nothing to tell of.
MOST_DEATHS: Final = 50
MOST_DEATHS_AT_ONCE: Final = 8
SILENT: Final = "silent for "  # how the cause begins when a process hung


class Death(NamedTuple):
    """The end of a process that did not end in order: why, its workers, the pages that may have killed it, and its
    id."""

    cause: str
    workers: tuple[str, ...]
    suspects: tuple[RunningPage, ...] = ()
    settled: int = 0
    pid: int = 0

    def tokens_of(self, worker: str) -> list[int]:
        """The leases of this worker that are blamed. A page that was lent alone and had not begun is not among them.

        Nor are pages of other workers of the process: they work on other crawls, whose leases may have the same tokens
        (see `Frontier.evict`)."""
        return [page.token for page in self.suspects if page.worker == worker] or [NO_LEASE]

    @property
    def sentence(self) -> str:
        """What happened to the process, what follows, and where its handlers were."""
        end = f"was {self.cause} and was killed" if self.cause.startswith(SILENT) else f"ended with {self.cause}"
        return f"{end}; its tasks go back, a new one starts{self.pages}"

    @property
    def pages(self) -> str:
        """Where its handlers were, as the end of a sentence; empty: nowhere."""
        return f"; {described(self.suspects)}" if self.suspects else ""


class Watched(NamedTuple):
    """A process as its guardian watches it: its black box, and what became of those before it.

    `has_begun`: one of them began the crawl, which this one resumes; `began` is when the first of them was started, on
    the monotonic clock, and `pages_before` how many pages had ended then."""

    box: BlackBox
    former: tuple[Death, ...] = ()
    has_begun: bool = False
    began: float = 0.0
    pages_before: int = 0


def death_of(code: int, reading: Reading, *, cause: str = "") -> Death | None:
    """The death of a process that ended with this code, below zero: by a signal. None: the code is its own answer."""
    # One that never came to work says by its code why; so does one that ended in order.
    if code >= 0 and (reading.has_ended or not reading.moves):
        return None
    return Death(cause or ending(code), reading.workers, reading.suspects, reading.settled)


def ending(code: int) -> str:
    """How a process ended that did not end in order: SIGSEGV, os._exit(1)."""
    if code >= 0:
        return f"os._exit({code})"
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"


def described(pages: tuple[RunningPage, ...]) -> str:
    """Which handlers are on which pages: its handler parse is on https://…"""
    first = f"{pages[0].who} was on {masked(pages[0].url)}"
    return first if len(pages) == 1 else f"{first}, {len(pages) - 1} others were running"


class Comebacks:
    """How long to wait before a process that died is replaced: longer and longer only while they die at once."""

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE_SECONDS
        self._on_pages = 0
        self._at_once = 0

    def after(self, death: Death, *, lived: float) -> float | None:
        """The pause after this death of a process that lived so many seconds; None: no other one would live longer."""
        if death.settled or lived > LONGEST_PAUSE_SECONDS:
            self._pause, self._on_pages, self._at_once = FIRST_PAUSE_SECONDS, 0, 0
            return FIRST_PAUSE_SECONDS
        if death.suspects:
            # The page is lent alone from now on, and given up when its attempts are used up: this comes to an end.
            self._on_pages += 1
            return FIRST_PAUSE_SECONDS if self._on_pages < MOST_DEATHS else None
        self._at_once += 1
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return pause if self._at_once < MOST_DEATHS_AT_ONCE else None


async def reclaim_former(watched: Watched | None, *, frontier: Frontier, say: Callable[[str], None]) -> None:
    """Reclaim the leases of the processes before this one; the pages that may have killed them are lent alone."""
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
    """Let workers that died, given with the processes that are dead (0: as they said), count as gone at once. The signs
    of life of a worker with a guardian name that process, which lives on; from here on they name the dead one."""
    for beat in await frontier.workers(within=SILENT_SECONDS):
        if (pid := pids.get(beat.worker)) is not None and not beat.left:
            own = pid or beat.pid
            await frontier.beat(msgspec.structs.replace(beat, pid=own, slots=0, busy=0, troubles=()))


async def evict(worker: str, death: Death, *, frontier: Frontier, say: Callable[[str], None]) -> None:
    """Reclaim the leases of a worker whose process died."""
    suspects = death.tokens_of(worker)
    await until_reachable(lambda: frontier.evict(worker, suspects=suspects, cause=death.cause), say=say)
