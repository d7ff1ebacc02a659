"""What the catalogue site and the graph site have in common: the reply with a page, and the numbers in their paths."""

from __future__ import annotations

import re

from shoal.testing.sites.catalogue import Page
from shoal.testing.sites.loopback import Reply, reply

NUMBERED = re.compile(r"/(?:catalogue/page-|slow/|flaky/|g/)(\d{1,9})(?:\.html)?")


def page_reply(page: Page | None, *, delay: float) -> Reply:
    """The page, or that there is none."""
    if page is None:
        return reply("<title>Not found</title><h1>Not found</h1>", status=404, delay=delay)
    return reply(page.body, kind=page.kind, delay=delay)


def number_of(path: str) -> int:
    """The number in a numbered path, or -1."""
    match = NUMBERED.fullmatch(path)
    return int(match[1]) if match else -1
