"""What the priority of a crawl means at a host that it shares with others: a factor of its weight.

Priority is not strict: a crawl that never ends would stop all others for ever. A power of nine per step was tried: four
steps are one start in 6,561, which is the same. Ranks among the crawls that are there would have to be written into all
of them whenever one changes."""

from __future__ import annotations

from typing import Final

HOST_FACTOR: Final = 9.0  # the starts at a shared host of a crawl of priority 1, for each one of a crawl of priority 0
MOST_STEPS: Final = 9  # more priority than this is no more at a host: the other crawls keep their share


def effective_weight(weight: float, priority: int) -> float:
    """The weight by which a crawl shares hosts with others. Each step of priority above 0 is worth nine crawls without
    priority; below 0 the same holds the other way round."""
    steps = min(abs(priority), MOST_STEPS)
    factor = HOST_FACTOR * steps if steps else 1.0
    return weight * factor if priority >= 0 else weight / factor
