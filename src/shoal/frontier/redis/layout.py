"""Numbers and words of the stored format that both Python and the Lua scripts need.

What lies under which key: `docs/explanation/redis-layout.md`."""

from __future__ import annotations

from typing import Final

from shoal.frontier.rules import constants, hosts, tasks
from shoal.model import NO_EXIT, REGION, STAGE, VIA

# The version of the keys of a crawl and of their contents: field `layout` of its record. Raise it when scripts of one
# version could not go on with a crawl of the other: a crawl of another layout is refused (`other_layout`).
LAYOUT_VERSION: Final = 1
UNKNOWN_LAYOUT: Final = -1  # of records whose field is missing or no number

Constant = int | float | str | tuple[str, ...]

SEQUENCES: Final = 2**31  # per step of priority: order = sequence - priority * SEQUENCES stays exact in a double
LANE_RECORD: Final = ">" + 17 * "d"  # the numbers of a lane; what they are: lua/parts/lanes.lua
VERDICTS: Final = ("ok", "blocked", "failed", "used", "unused")  # a report names its verdict by the index here

# By the name that scripts use. Only the names that a script uses are written into it.
CONSTANTS: Final[dict[str, Constant]] = {
    **{name: value for name, value in vars(constants).items() if name.isupper()},
    "APART": hosts.APART,
    "ALONE": hosts.ALONE,
    "SHARED": hosts.SHARED,
    "SEQUENCES": SEQUENCES,
    "VERDICTS": VERDICTS,
    "LANE_RECORD": LANE_RECORD,
    **{name: value for name, value in vars(tasks).items() if name.isupper() and isinstance(value, str)},
    "NO_EXIT": NO_EXIT,
    "VIA": VIA,
    "STAGE": STAGE,
    "REGION": REGION,
}
