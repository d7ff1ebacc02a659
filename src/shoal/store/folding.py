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
    if (is_older and rule.merge == "replace") or _is_fresh(before, row, rule):
        return before
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
    return rule.freshness > 0 and row.token != before.token and row.at - before.last_seen < rule.freshness


def _filled(before: bytes, data: bytes, *, is_older: bool) -> bytes:
    """Merged field by field. Values stay as they are spelled, so that no digit is lost."""
    old, new = _RAW_FIELDS.decode(before), _RAW_FIELDS.decode(data)
    under, over = (new, old) if is_older else (old, new)
    given = {name: value for name, value in over.items() if bytes(value) != _NULL}
    merged = {**old, **{name: under[name] for name in under if name in old or bytes(under[name]) != _NULL}, **given}
    return msgspec.json.encode(merged)
