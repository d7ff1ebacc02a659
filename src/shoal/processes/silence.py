"""How long a process has been silent, and how long it may be: rules over readings of its black box. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shoal.processes.black_box import Reading
from shoal.text.secrets import masked

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
