"""Numbers and words of the stored format that both Python and the Lua scripts need.

What lies under which key: `docs/explanation/redis-layout.md`."""

from __future__ import annotations

from typing import Final

from shoal.frontier.rules import constants
from shoal.model import NO_EXIT, VIA

Constant = int | float | str | tuple[str, ...]

SEQUENCES: Final = 2**31  # per step of priority: order = sequence - priority * SEQUENCES stays exact in a double
VERDICTS: Final = ("ok", "blocked", "failed", "used", "unused")  # a report names its verdict by the index here

# By the name that scripts use. Only the names that a script uses are written into it.
CONSTANTS: Final[dict[str, Constant]] = {
    **{name: value for name, value in vars(constants).items() if name.isupper()},
    "SEQUENCES": SEQUENCES,
    "VERDICTS": VERDICTS,
    "NO_EXIT": NO_EXIT,
    "VIA": VIA,
}
