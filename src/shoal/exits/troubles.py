"""What hinders a worker, one line each: refused logins, proxies that are down, and shortages of this machine (file
descriptors, ports, memory), for which no page, host or exit is to blame."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from shoal.exits.accounts import LoginRefused
from shoal.exits.refusals import LOGGED_OUT, UNAUTHORIZED, ExitRefusal
from shoal.fetch.addresses import family_of
from shoal.fetch.base import Fault, FaultKind, Response
from shoal.fetch.descriptors import is_shortage, is_used_up, names_files, trouble_of_shortage
from shoal.fetch.exits import ExitConfig

SHORTEST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 1.5
LOOKS: Final = 4  # checks for free descriptors during a pause
SHORTAGE_SECONDS: Final = 10.0
NAME: Final = "this machine"


class Shortage(NamedTuple):
    """A request that could not be sent, with the system's error message."""

    message: str


async def wait_out(shortage: Shortage, *, troubles: Troubles, rng: random.Random) -> None:
    """Note the shortage and wait a moment; for descriptors, until some are free. The page keeps its slot meanwhile, so
    that the worker needs fewer descriptors."""
    troubles.begin(NAME, trouble_of_shortage(shortage.message), seconds=SHORTAGE_SECONDS)
    looks = LOOKS if names_files(shortage.message) else 1
    for _ in range(looks):
        await asyncio.sleep(rng.uniform(SHORTEST_PAUSE, LONGEST_PAUSE) / looks)
        if not is_used_up():
            return


LOGIN_REFUSED: Final = "login refused: "
LOGIN_FAILED: Final = "login failed: "
KEY_REFUSED: Final = "key refused: "
KEY_UNSENT: Final = "key not sent: "
IS_DOWN: Final = " is down: "
FAILS: Final = " fails: "
FORBIDDEN: Final = 403
MOST_LINES: Final = 10
LONGEST_LINE: Final = 200
# Not for ever: perhaps another worker notices that the exit works again.
KEPT_SECONDS: Final = 300.0
_EXIT: Final = re.compile(rf"(?:proxy|gateway|account|address|key) \S+(?:{IS_DOWN}|{FAILS})")


class Troubles:
    """The troubles of one worker. Each is said once, and kept until its exit works, or for five minutes (unless
    `seconds` says otherwise) after it last happened."""

    def __init__(self, say: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._lines: dict[str, tuple[str, float]] = {}

    def begin(self, exit_name: str, line: str, *, seconds: float = KEPT_SECONDS) -> None:
        """An exit, or this machine, has failed for this reason."""
        line = " ".join(line.split())[:LONGEST_LINE]
        former, _ = self._lines.get(exit_name, ("", 0.0))
        if not former and len(self.lines()) >= MOST_LINES:
            return
        self._lines[exit_name] = (line, self._clock() + seconds)
        if line != former:
            self._say(line)

    def end(self, exit_name: str) -> None:
        """The exit works."""
        if self._lines:
            self._lines.pop(exit_name, None)

    def lines(self) -> tuple[str, ...]:
        """The current troubles."""
        now = self._clock()
        self._lines = {name: entry for name, entry in self._lines.items() if entry[1] > now}
        return tuple(line for line, _ in self._lines.values())


def is_trouble(line: str) -> bool:
    """Whether a worker's line is a trouble with an exit or with its machine."""
    return (
        line.startswith((LOGIN_REFUSED, LOGIN_FAILED, KEY_REFUSED, KEY_UNSENT))
        or is_shortage(line)
        or bool(_EXIT.match(line))
    )


def trouble_of(config: ExitConfig, refusal: ExitRefusal, *, host: str = "the site") -> str:
    """The trouble behind a refusal; empty: the page or the site may be the cause."""
    if config.kind == "key" and refusal.outcome == f"http_{UNAUTHORIZED}":
        return f"{KEY_REFUSED}{config.name}: {host} answered {UNAUTHORIZED}"
    cause = refusal.reason.removeprefix(f"{refusal.outcome}: ").removeprefix(f"{config.name}: ")
    if refusal.outcome == "login":
        said = cause.removeprefix(f"{LoginRefused.__name__}: ")
        has_raised = said == cause and cause != LOGGED_OUT
        return f"{LOGIN_FAILED if has_raised else LOGIN_REFUSED}{config.name}: {said}"
    if refusal.outcome != "exit":
        return ""
    return f"{config.kind} {config.name}{IS_DOWN if refusal.is_certain else FAILS}{cause}"


def trouble_of_unsent(config: ExitConfig, answer: Response | Fault) -> str:
    """The trouble of a page that was refused because its host is not in `hosts`, so that it got no headers of its
    account; empty: that was not the cause."""
    if not config.headers or isinstance(answer, Fault) or answer.status not in (UNAUTHORIZED, FORBIDDEN):
        return ""
    if answer.url.startswith(config.hosts):
        return ""
    beginning = "/".join(answer.url.split("/", 3)[:3])
    hosts = ", ".join(host.removesuffix("/") for host in config.hosts)
    return f"{KEY_UNSENT}{config.name}: {beginning} answered {answer.status} and is none of its hosts ({hosts})"


def trouble_of_family(config: ExitConfig, refusal: ExitRefusal) -> str:
    """The trouble of an IPv4 or IPv6 address that cannot reach hosts without one; the same line for every host."""
    if config.kind != "address" or refusal.outcome != FaultKind.CONNECT or not refusal.is_certain:
        return ""
    return f"address {config.name}{FAILS}some hosts have no {family_of(config.address)} address"
