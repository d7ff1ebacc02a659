"""Requests as they wait in a queue of scrapy-redis: JSON or pickled dicts, made into tasks without their spider."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec
from scrapy import Request

from shoal.integrations.scrapy.fingerprints import FORMS
from shoal.integrations.scrapy.stored_requests import StoredRequests, UnfitRequest
from shoal.model import Task

PICKLED = b"\x80"  # every pickle that scrapy-redis writes begins with it
SHOWN_BYTES = 60

Fields = dict[str, Any]


class UnreadableEntry(Exception):  # noqa: N818 -- reads as what is wrong
    """An entry that is no request: what is wrong with it."""


def is_pickled(entry: bytes) -> bool:
    """Whether an entry can only be read by running what it holds."""
    return entry.startswith(PICKLED)


def fields_of(entry: bytes) -> Fields:
    """The fields of a request. A pickled entry is unpickled, which runs code that it names: for trusted queues alone.
    Raises UnreadableEntry."""
    try:
        fields = pickle.loads(entry) if is_pickled(entry) else msgspec.json.decode(entry)  # noqa: S301 -- asked for
    except Exception as error:  # what a pickle names may raise anything
        shown = f"{type(error).__name__}: {error}" if is_pickled(entry) else "neither JSON nor a pickle"
        raise UnreadableEntry(f"{shown} ({entry[:SHOWN_BYTES]!r})") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("url"), str | bytes):
        raise UnreadableEntry(f"no URL in it ({entry[:SHOWN_BYTES]!r})")
    return fields


class QueuedRequests:
    """Makes tasks of the entries of one queue. An entry that must not be filtered gets a key by what it holds, and by
    its number among those that hold the same: read again, it is the same task."""

    def __init__(self, form: str) -> None:
        self._requests = StoredRequests(None, FORMS[form])
        self._unfiltered: Counter[bytes] = Counter()

    def task_of(self, fields: Fields, entry: bytes) -> Task:
        """The entry as a task. Raises UnreadableEntry, or UnfitRequest with what no other process could do."""
        request = request_of(fields)
        key = self._key(request, entry)
        more = self._requests.page_name(request, key, is_start=False)
        try:
            return self._requests.task_with(_packed_fields(fields, request), request, key, more=more)
        except (TypeError, ValueError) as error:
            raise UnfitRequest(f"{request}: {error}") from None

    def letter_of(self, fields: Fields, entry: bytes) -> Task:
        """A task that stands for an entry that is unfit, among the dead letters. After `task_of` of the same entry."""
        request = request_of(fields)
        return self._requests.letter_of(request, self._key(request, entry, is_counted=True))

    def _key(self, request: Request, entry: bytes, *, is_counted: bool = False) -> int:
        if not request.dont_filter:
            return self._requests.key_of(request, is_start=False)
        digest = blake2b(entry, digest_size=16).digest()
        self._unfiltered[digest] += not is_counted
        return self._requests.key_of(request, is_start=False, entry=f"{digest.hex()} {self._unfiltered[digest]}")


def request_of(fields: Fields) -> Request:
    """What the keys and the lane of a request are made of; not its class, nor its callbacks. Raises UnreadableEntry."""
    encoding = _encoding(fields)
    try:
        return Request(
            _text(fields["url"], encoding),
            method=_text(fields.get("method") or "GET", encoding),
            headers=_headers(fields, encoding),
            body=_bytes(fields.get("body") or b"", encoding),
            meta=fields.get("meta") if isinstance(fields.get("meta"), dict) else None,
            priority=fields.get("priority") or 0,
            dont_filter=bool(fields.get("dont_filter")),
            encoding=encoding,
        )
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise UnreadableEntry(f"{error} ({fields['url']!r})") from None


def _packed_fields(fields: Fields, request: Request) -> Fields:
    """The fields as Scrapy gives them for a request with its spider, of any version."""
    kept = {name: value for name, value in fields.items() if name != "_encoding"}
    kept["encoding"] = request.encoding
    kept["dont_filter"] = request.dont_filter
    kept["headers"] = {name: [bytes(value) for value in values] for name, values in request.headers.items()}
    for role in ("callback", "errback"):
        name = fields.get(role) or None
        if not (name is None or isinstance(name, str)):
            raise UnfitRequest(f"{request}: its {role} is no name of a method but {name!r}")
        kept[role] = name
    if kept.get("_class") in (None, "scrapy.http.request.Request", "scrapy.Request"):
        kept.pop("_class", None)
    elif not isinstance(kept["_class"], str):
        raise UnfitRequest(f"{request}: its class is no name but {kept['_class']!r}")
    return kept


def _headers(fields: Fields, encoding: str) -> dict[bytes, list[bytes]]:
    given = fields.get("headers") or {}
    pairs = given.items() if isinstance(given, Mapping) else given
    return {
        _bytes(name, encoding): [
            _bytes(value, encoding) for value in (values if isinstance(values, list | tuple) else [values])
        ]
        for name, values in pairs
    }


def _encoding(fields: Fields) -> str:
    given = fields.get("encoding") or fields.get("_encoding")
    return given if isinstance(given, str) else "utf-8"


def _bytes(value: Any, encoding: str) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode(encoding)


def _text(value: Any, encoding: str) -> str:
    return value.decode(encoding) if isinstance(value, bytes) else str(value)
