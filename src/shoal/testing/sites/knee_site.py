"""A graph of pages on a host that answers so many requests per second, one after the other: what comes faster waits."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from shoal.testing.sites.graph_site import GraphSite
from shoal.testing.sites.loopback import Reply, Request

HEAVY_SHARE = 0.1
HEAVY_TIMES = 3.0


@dataclass(kw_only=True)
class KneeSite(GraphSite):
    """Its answers take longer and longer from `bears` requests per second on. Some pages take longer than others at any
    pace. `rate_limit` says from when on requests are refused."""

    bears: float
    _free_at: float = field(default=0.0, init=False)
    _rng: random.Random = field(default_factory=lambda: random.Random(1), init=False)

    def _answer(self, request: Request) -> Reply:
        now = time.monotonic()
        waits = max(self._free_at - now, 0.0)
        self._free_at = now + waits + 1 / self.bears
        own = self.latency * (HEAVY_TIMES if self._rng.random() < HEAVY_SHARE else self._rng.uniform(0.8, 1.2))
        return super()._answer(request)._replace(delay=waits + own)
