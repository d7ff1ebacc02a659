"""What the rules in the text of a robots.txt allow."""

from __future__ import annotations

from shoal.fetch.robots import Robots, compact
from shoal.settings.table import Settings

AGENT = Settings().user_agent
SITE = "https://example.com"


def rules(text: str | bytes) -> Robots:
    return Robots(compact(text.encode() if isinstance(text, str) else text), AGENT)


def allows(text: str, path: str) -> bool:
    return rules(text).allows(SITE + path)
