"""What holds for a finished crawl whose URL keys were dropped: nothing may come into it: all would be new."""

from __future__ import annotations

from shoal.errors import UsageError


def keys_dropped(crawl: str) -> UsageError:
    """The error of a change that needs the keys."""
    return UsageError(
        f"crawl {crawl!r} is finished and its URL keys were dropped (known_ttl): it would fetch again what it has done;"
        " begin a new crawl with `shoal run FILE --again`"
    )


def not_finished(crawl: str, state: str) -> UsageError:
    """The error of a crawl that still needs its keys."""
    return UsageError(f"crawl {crawl!r} is {state}: the keys of finished crawls alone can be dropped")


def no_keys_to_know(crawl: str, why: str) -> UsageError:
    """The error of an earlier crawl that cannot say which URLs it has done."""
    return UsageError(
        f"crawl {crawl!r} cannot say which URLs it has done, {why}: --skip-stored REGEX goes by the items instead,"
        " or leave out --skip-known to fetch everything again"
    )


DROPPED = "its URL keys were dropped (known_ttl)"
BLOOM = "it keeps its URL keys in a Bloom filter"
