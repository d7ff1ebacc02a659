"""The moment in which a verb of the SQLite frontier runs."""

from __future__ import annotations

import msgspec

from shoal.frontier.steady import SteadyTimes


class Moment(msgspec.Struct, frozen=True):
    """The time of day, what this process reckons of the times of its crawls, and whether the verb may write. Each crawl
    has a time of its own: see `rules/crawl_time.py`. `mended`: bad records were set aside a moment ago."""

    wall: float
    times: SteadyTimes
    writes: bool
    mended: bool = False
