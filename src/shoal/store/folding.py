"""An item that is written again: `ItemRule` for stores that apply it in Python. Pure functions."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from shoal.store.base import ItemRow, ItemRule

_DECODER = msgspec.json.Decoder()
_SORTED = msgspec.json.Encoder(order="sorted")
_RAW_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL = b"null"


class Folded(msgspec.Struct, frozen=True, kw_only=True):
    """An item after some rows. `content` is the fingerprint of its data."""

    crawl: str
    url: str
    data: bytes
    content: int
    token: int
    first_seen: float
    last_seen: float
    changed_at: float
    version: int = 1
    written_at: float | None = None  # None: when it was last seen
    missing_since: float | None = None
    gone_at: float | None = None
    moves: int = 0
    left_at: float | None = None  # when it went, and came back, the last time that it did both
    back_at: float | None = None


def fold(before: Folded | None, row: ItemRow, *, rule: ItemRule) -> Folded:
    """The item after this row; the object `before` itself when the row changes nothing."""
    if before is None:
        return Folded(
            crawl=row.crawl,
            url=row.url,
            data=row.data,
            content=fingerprint(row.data),
            token=row.token,
            first_seen=row.at,
            last_seen=row.at,
            changed_at=row.at,
        )
    is_older = row.token < before.token
    if is_older and rule.merge == "replace":
        return before
    if _is_fresh(before, row, rule):
        return _only_seen(before, row, is_older=is_older)
    data = row.data if rule.merge == "replace" else _filled(before.data, row.data, is_older=is_older)
    content = before.content if data == before.data else fingerprint(data)
    has_changed = content != before.content
    newer = before if is_older else row
    return Folded(
        crawl=newer.crawl,
        url=newer.url,
        data=data if has_changed else before.data,
        content=content,
        token=newer.token,
        first_seen=before.first_seen,
        last_seen=max(before.last_seen, row.at),
        changed_at=row.at if has_changed else before.changed_at,
        version=before.version + has_changed,
        **_presence(before, row.at, is_older=is_older),
    )


def fingerprint(data: bytes) -> int:
    """A number that is equal for equal JSON, whatever the order of fields and the white space."""
    return fingerprint_of(_DECODER.decode(data))


def fingerprint_of(fields: dict[str, Any]) -> int:
    """The fingerprint of decoded data."""
    digest = hashlib.sha1(_SORTED.encode(fields), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def _is_fresh(before: Folded, row: ItemRow, rule: ItemRule) -> bool:
    # The same row may come again: the reply to its first write may have been lost.
    written_at = before.last_seen if before.written_at is None else before.written_at
    return rule.freshness > 0 and row.token != before.token and row.at - written_at < rule.freshness


def _only_seen(before: Folded, row: ItemRow, *, is_older: bool) -> Folded:
    """An item that is too fresh to be written: it was seen nevertheless."""
    presence = _presence(before, row.at, is_older=is_older)
    is_later = row.at > before.last_seen
    if not is_later and presence["missing_since"] == before.missing_since:
        return before
    written_at = before.last_seen if before.written_at is None else before.written_at
    times = {"last_seen": row.at, "written_at": written_at} if is_later else {}
    return msgspec.structs.replace(before, **times, **presence)


def _presence(before: Folded, at: float, *, is_older: bool) -> dict[str, Any]:
    """Whether the item is missing or gone after it was seen at a time."""
    is_there = before.missing_since is None or (not is_older and at >= before.missing_since)
    comes_back = is_there and before.gone_at is not None
    return {
        "missing_since": None if is_there else before.missing_since,
        "gone_at": None if is_there else before.gone_at,
        "moves": before.moves + comes_back,
        "left_at": before.gone_at if comes_back else before.left_at,
        "back_at": max(before.last_seen, at) if comes_back else before.back_at,
    }


def _filled(before: bytes, data: bytes, *, is_older: bool) -> bytes:
    """Merged field by field. Values stay as they are spelled, so that no digit is lost."""
    old, new = _RAW_FIELDS.decode(before), _RAW_FIELDS.decode(data)
    under, over = (new, old) if is_older else (old, new)
    given = {name: value for name, value in over.items() if bytes(value) != _NULL}
    merged = {**old, **{name: under[name] for name in under if name in old or bytes(under[name]) != _NULL}, **given}
    return msgspec.json.encode(merged)
