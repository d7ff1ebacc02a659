"""Whether a crawl saw the whole site: only then an item that it did not see is gone."""

from __future__ import annotations

from typing import Final

from shoal.frontier.rules.tasks import MAX_PAGES, MAX_PER_HOST, MAX_PER_SHAPE
from shoal.model import CrawlState, Progress
from shoal.policy.verdicts import HANDLED
from shoal.text.errors import several

# Pages that ended so are known in full: handled, or not there, or another one stands for them.
_KNOWN_IN_FULL: Final = frozenset({"ok", "not_modified", "redirected", "handed_over", "http_404", "http_410", "robots"})
# What keeps pages out that the next crawl may let in.
_LIMITS: Final = (
    MAX_PAGES,
    MAX_PER_HOST,
    MAX_PER_SHAPE,
    "too_many_links",
    "equal_pages",
    "bad_sitemap",
    "sitemap_entry",
)


def why_not_whole(progress: Progress) -> str:
    """Why items that the crawl did not see may still be on the site; empty: it saw all of it."""
    if progress.state is not CrawlState.FINISHED:
        return f"the crawl is not finished, but {progress.state}"
    if progress.feeders_lost:
        return "its start was not fed to the end"
    if progress.dead or progress.cancelled:
        return f"{several(progress.dead + progress.cancelled, 'page')} not done (dead letters, or cancelled)"
    for outcome, number in progress.outcomes.items():
        if number and outcome not in _KNOWN_IN_FULL:
            return f"{several(number, 'page')} ended as {outcome}"
    for limit in _LIMITS:
        if progress.rejected.get(limit):
            return f"{several(progress.rejected[limit], 'link')} kept out by {limit}"
    return "" if any(progress.outcomes.get(name) for name in HANDLED) else "it handled no page"
