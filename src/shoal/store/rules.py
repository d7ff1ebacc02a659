"""Rows that no store takes. All stores refuse the same: a crawl that works on a laptop works on the fleet.

An item that is written again: `ItemRule` for stores that apply it in Python. Pure functions.

What became of an item between two moments, from what a store keeps of it. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from shoal.errors import UsageError
from shoal.store.base import VALIDATOR_LENGTH, Difference, FetchRow, ItemRow, ItemRule, PageLook

MAX_DATA_BYTES = 16 * 1024 * 1024
MAX_KEY_BYTES = 2048
MAX_NESTING = 500

_Fields = dict[str, Any]

# An escaped NUL, but not an escaped backslash before the letters u0000.
_ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_DECODER = msgspec.json.Decoder()
_HALF_A_PAIR = "half of a surrogate pair"


def why_unstorable(row: ItemRow) -> str | None:
    """Why this row can never be stored; None when it can."""
    fields = fields_or_why(row)
    return fields if isinstance(fields, str) else None


def fields_or_why(row: ItemRow) -> _Fields | str:
    """The row's fields, or why it can never be stored. Only scans in native code: this runs for every row."""
    return _key_fault(row.key) or _url_fault(row.url) or _fields_of(row.data)


def storable(items: Sequence[ItemRow]) -> tuple[list[tuple[ItemRow, _Fields]], dict[int, str]]:
    """The storable rows with their fields, and why the other rows are not storable, by index."""
    good: list[tuple[ItemRow, _Fields]] = []
    refused: dict[int, str] = {}
    for index, row in enumerate(items):
        fields = fields_or_why(row)
        if isinstance(fields, str):
            refused[index] = fields
        else:
            good.append((row, fields))
    return good, refused


def storable_keys(keys: Iterable[str]) -> list[str]:
    """Those of the keys that an item can have, each once."""
    return [key for key in dict.fromkeys(keys) if _key_fault(key) is None]


def storable_looks(looks: Iterable[PageLook]) -> list[PageLook]:
    """The looks with those of their keys that an item can have; none of a page whose URL no item can have."""
    return [
        msgspec.structs.replace(look, keys=tuple(storable_keys(look.keys)))
        for look in looks
        if _url_fault(look.url) is None
    ]


def mended(row: FetchRow) -> FetchRow:
    """The log line with characters escaped that a store would refuse: a log line is always stored. Validators that are
    too long, or hold such characters, could not be sent back: they are left out."""
    if row.etag or row.last_modified:
        row = msgspec.structs.replace(row, etag=_validator(row.etag), last_modified=_validator(row.last_modified))
    text = f"{row.url}{row.final_url}{row.outcome}{row.error}{row.worker}{row.exit}"
    if text.isascii() and "\0" not in text:
        return row
    changes = {name: _spelled_out(getattr(row, name)) for name in ("url", "final_url", "outcome", "error", "worker")}
    return msgspec.structs.replace(row, **changes, exit=_spelled_out(row.exit))


def _validator(text: str) -> str:
    is_good = len(text) <= VALIDATOR_LENGTH and text.isprintable() and _url_fault(text) is None
    return text if is_good else ""


def _spelled_out(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _key_fault(key: str) -> str | None:
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return f"{_HALF_A_PAIR} in its key"
    if size > MAX_KEY_BYTES:
        return f"its key is {size:,} bytes long, more than {MAX_KEY_BYTES:,}"
    return "a NUL character in its key" if "\0" in key else None


def _url_fault(url: str) -> str | None:
    if "\0" in url:
        return "a NUL character in its URL"
    try:
        url.encode()
    except UnicodeEncodeError:
        return f"{_HALF_A_PAIR} in its URL"
    return None


def _fields_of(data: bytes) -> _Fields | str:
    if len(data) > MAX_DATA_BYTES:
        return f"its data is {len(data):,} bytes, more than {MAX_DATA_BYTES:,}"
    try:
        fields = _DECODER.decode(data)
    except UnicodeDecodeError:
        return f"{_HALF_A_PAIR}, or other bytes that are no text, in its data"
    except RecursionError:
        return f"its data is nested deeper than {MAX_NESTING} levels"
    except msgspec.DecodeError as error:
        return f"its data is not JSON: {' '.join(str(error).split())}"
    if not isinstance(fields, dict):
        return "its data is not a JSON object"
    # Searching one byte is much faster than searching six.
    if b"\\" in data and _ESCAPED_NUL.search(data):
        return "a NUL character in its data"
    if len(data) > 2 * MAX_NESTING and _may_be_deep(data) and _nesting(fields) > MAX_NESTING:
        return f"its data is nested deeper than {MAX_NESTING} levels"
    return fields


def _may_be_deep(data: bytes) -> bool:
    return data.count(b"[") + data.count(b"{") > MAX_NESTING


def _nesting(fields: _Fields) -> int:
    depth = 0
    level: list[Any] = [fields]
    while level:
        depth += 1
        level = [child for parent in level for child in _children(parent) if isinstance(child, dict | list)]
    return depth


def _children(parent: Any) -> Iterable[Any]:
    return parent.values() if isinstance(parent, dict) else parent


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
