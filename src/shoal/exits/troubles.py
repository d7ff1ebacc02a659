"""What hinders a worker, one line each: logins that are refused, proxies that are down, what the machine lacks."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final

from shoal.exits.accounts import LoginRefused
from shoal.exits.refusals import LOGGED_OUT, ExitRefusal
from shoal.fetch.descriptors import is_shortage
from shoal.fetch.exit_config import ExitConfig

LOGIN_REFUSED: Final = "login refused: "
LOGIN_FAILED: Final = "login failed: "
IS_DOWN: Final = " is down: "
FAILS: Final = " fails: "
MOST_LINES: Final = 10
LONGEST_LINE: Final = 200
# Another worker may be the one that finds the exit well again.
KEPT_SECONDS: Final = 300.0
_EXIT: Final = re.compile(rf"(?:proxy|gateway|account) \S+(?:{IS_DOWN}|{FAILS})")


class Troubles:
    """The troubles of one worker. Each is said once, and kept until its exit works or nothing was heard of it for a
    while: five minutes, unless it was said otherwise."""

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
        """The troubles that last."""
        now = self._clock()
        self._lines = {name: entry for name, entry in self._lines.items() if entry[1] > now}
        return tuple(line for line, _ in self._lines.values())


def is_trouble(line: str) -> bool:
    """Whether a line that a worker said is a trouble with an exit, or with its machine."""
    return line.startswith((LOGIN_REFUSED, LOGIN_FAILED)) or is_shortage(line) or bool(_EXIT.match(line))


def trouble_of(config: ExitConfig, refusal: ExitRefusal) -> str:
    """The trouble that a refusal stands for; empty when the page or the site may be the cause."""
    cause = refusal.reason.removeprefix(f"{refusal.outcome}: ").removeprefix(f"{config.name}: ")
    if refusal.outcome == "login":
        said = cause.removeprefix(f"{LoginRefused.__name__}: ")
        has_raised = said == cause and cause != LOGGED_OUT
        return f"{LOGIN_FAILED if has_raised else LOGIN_REFUSED}{config.name}: {said}"
    if refusal.outcome != "exit":
        return ""
    return f"{config.kind} {config.name}{IS_DOWN if refusal.is_certain else FAILS}{cause}"
