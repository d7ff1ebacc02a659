"""What the priority of a crawl means at a host that it shares with others. Decision 60 says why."""

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
