"""What became of an item between two moments, from what a store keeps of it. Pure."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shoal.errors import UsageError
from shoal.store.base import Difference
from shoal.store.folding import fingerprint


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """One content of an item, and since when it had it."""

    version: int
    at: float
    data: bytes


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an item. It was gone last from `left_at` to `back_at`, and `moves` counts how often it went or
    came back. `was` and `then` are its contents at the two moments; None: not known."""

    key: str
    url: str
    first_seen: float
    changed_at: float
    gone_at: float | None = None
    left_at: float | None = None
    back_at: float | None = None
    moves: int = 0
    was: Content | None = None
    then: Content | None = None


def check_moments(since: float, until: float) -> None:
    """Refuse two moments in the wrong order."""
    if since >= until:
        raise UsageError("the first moment is not before the second: give the earlier one first")


def content_at(moment: float, current: Content, kept: Callable[[float], Content | None]) -> Content | None:
    """The content at a moment: the present one, or a kept version."""
    return current if current.at <= moment else kept(moment)


def difference(item: History, *, since: float, until: float) -> Difference | None:
    """How the item differs at the second moment from what it was at the first."""
    before, after = _is_there(item, since), _is_there(item, until)
    if before is None or after is None:
        return Difference(key=item.key, url=item.url, change="untold", at=item.left_at or item.changed_at)
    if not before:
        return _came(item, since) if after else None
    if not after:
        at = item.gone_at if item.gone_at is not None and item.gone_at <= until else item.left_at
        return Difference(key=item.key, url=item.url, change="gone", at=at or 0.0, before=_data(item.was))
    return _changed(item, since)


def _is_there(item: History, moment: float) -> bool | None:
    """Whether the item was there at a moment; None where only an earlier absence could tell, which is not kept."""
    if moment < item.first_seen or (item.gone_at is not None and item.gone_at <= moment):
        return False
    if item.left_at is None or item.back_at is None or moment >= item.back_at:
        return True
    if moment >= item.left_at:
        return False
    return True if item.moves // 2 == 1 else None


def _came(item: History, since: float) -> Difference:
    at = item.first_seen if item.first_seen > since else item.back_at
    return Difference(key=item.key, url=item.url, change="new", at=at or 0.0, after=_data(item.then))


def _changed(item: History, since: float) -> Difference | None:
    if item.then is None:
        return Difference(key=item.key, url=item.url, change="untold", at=item.changed_at, before=_data(item.was))
    if item.then.at <= since or (item.was and fingerprint(item.was.data) == fingerprint(item.then.data)):
        return None
    after, at = item.then.data, item.then.at
    return Difference(key=item.key, url=item.url, change="changed", at=at, before=_data(item.was), after=after)


def _data(content: Content | None) -> bytes | None:
    return None if content is None else content.data
