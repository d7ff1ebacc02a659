"""Rows that no store takes. All stores refuse the same: a crawl that works on a laptop works on the fleet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from shoal.store.base import VALIDATOR_LENGTH, FetchRow, ItemRow, PageLook

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
