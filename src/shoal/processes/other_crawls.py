"""How other crawls hold back a host that they share with this one, in words for people. Pure."""

from __future__ import annotations

import time

from shoal.exits.figures import clock_time
from shoal.model import Held
from shoal.processes.stats import describe_interval
from shoal.text.errors import several


def named(held: Held) -> str:
    """The crawl that holds a lane back, and how many more do."""
    return f"{held.crawl} and {several(held.more, 'other crawl')}" if held.more else held.crawl


def held_line(held: Held) -> str:
    """Why a lane waits for other crawls, or goes slower for them."""
    who = named(held)
    match held.by:
        case "rest":
            return f"the host asked {who} to wait; rests until {clock_time(time.time() + held.seconds)}"
        case "rules":
            return f"{who} fetches its robots.txt"
        case "cap":
            return f"with those of {who} it has as many requests in flight as it may"
        case "pace":
            return f"slower than asked for: {who} has it at {describe_interval(held.interval)}"
        case "turn":
            return f"takes turns with {who}"
