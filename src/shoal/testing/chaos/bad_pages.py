"""Pages of the numbered graph that harm their worker: chosen by a seed, marked on the page."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Longer than any run: only the parent ends it.
FOR_EVER_SECONDS = 10**6
MUTEX_BYTES = 256


class Harm(enum.StrEnum):
    """What a page does to its worker; the value is the mark on the page."""

    KILL = "SIGKILL"
    CRASH = "SIGSEGV"
    EXIT = "os._exit(1)"
    BLOCK = "blocks in C"
    DEAF = "swallows its deadline"


DEADLY = (Harm.KILL, Harm.CRASH, Harm.EXIT)
HANGING = (Harm.BLOCK, Harm.DEAF)


class BadPages(NamedTuple):
    """Numbers of the pages that harm each worker, and of those that harm only the first one."""

    always: Mapping[int, Harm] = {}
    once: Mapping[int, Harm] = {}

    def of_kind(self, kind: Sequence[Harm]) -> int:
        """How many pages do harm of this kind."""
        return sum(harm in kind for harms in (self.always, self.once) for harm in harms.values())


def reasons_for(harm: Harm) -> tuple[str, ...]:
    """The possible beginnings of the dead-letter reason of a page that harms each worker."""
    match harm:
        case Harm.DEAF:
            # Its deadline is raised again and again, perhaps where nothing swallows it. Leases are renewed only as long
            # as a handler may take: this one may be reclaimed before the parent sees why.
            return "worker lost", "handler: HandlerTimeout"
        case Harm.BLOCK:
            # No code of the worker runs, so its lease is not renewed.
            return ("worker lost",)
        case _:
            return (f"worker lost: {harm}",)


def choose(rng: random.Random, *, deadly: int, hanging: int, always: Sequence[int], once: Sequence[int]) -> BadPages:
    """This many deadly and hanging pages of each group: from `always` those that harm each worker, from `once` the
    others."""
    harms = [*_drawn(rng, DEADLY, deadly), *_drawn(rng, HANGING, hanging)]
    others = [*_drawn(rng, DEADLY, deadly), *_drawn(rng, HANGING, hanging)]
    return BadPages(
        always=dict(zip(rng.sample(always, k=len(harms)), harms, strict=True)),
        once=dict(zip(rng.sample(once, k=len(others)), others, strict=True)),
    )


def do_harm(mark: str) -> None:
    """Do what the mark of a page says; does not return."""
    match Harm(mark):
        case Harm.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Harm.CRASH:
            ctypes.string_at(0)
        case Harm.EXIT:
            os._exit(1)
        case Harm.BLOCK:
            _block_in_c()
        case Harm.DEAF:
            while True:
                with contextlib.suppress(BaseException):
                    time.sleep(FOR_EVER_SECONDS)


def _block_in_c() -> None:
    """Wait for ever for a lock that this thread holds: unlike a sleep, no signal ends it. PyDLL keeps the interpreter
    lock, so that no other thread of the worker runs."""
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(MUTEX_BYTES)
    library.pthread_mutex_init(mutex, None)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def _drawn(rng: random.Random, kinds: Sequence[Harm], number: int) -> list[Harm]:
    """This many harms, each kind before one repeats."""
    drawn: list[Harm] = []
    while len(drawn) < number:
        drawn += rng.sample(kinds, k=len(kinds))
    return drawn[:number]
