"""The archive contract: raw pages. A capture is one archived response: its task, its time, its body."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import msgspec

from shoal.model import Task


class Capture(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One archived page without its body. `headers` are as received; `size` and `content_hash` describe the body as the
    handler saw it. Of the request only what replay needs is stored: its headers and body may hold passwords.

    Encoded by field name, unknown names are ignored: new fields need a default."""

    crawl: str
    url: str
    final_url: str
    key: int
    status: int
    headers: dict[str, str]
    at: float
    token: int
    content_hash: str
    size: int
    method: str = "GET"
    attempt: int = 1
    worker: str = ""
    handler: str = "parse"
    depth: int = 0
    priority: int = 0
    meta: dict[str, Any] | None = None
    packed_meta: bytes | None = None  # MessagePack, for a meta that JSON would change
    screenshot: str = ""  # hash of the screenshot of a rendered page, stored as a body


class RawPage(msgspec.Struct, frozen=True):
    """A capture with its body, and the screenshot of a rendered page."""

    capture: Capture
    body: bytes
    screenshot: bytes = b""


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """What is deleted with a crawl: its captures, and bodies and screenshots that no capture of another crawl names."""

    captures: int = 0
    bodies: int = 0


class Archive(Protocol):
    async def write(self, pages: Sequence[RawPage]) -> list[str]:
        """Store all these pages; returns for each page the name of the object with its capture. All are stored when
        this returns. Equal bodies are stored once, and writing the same pages again is harmless."""

    async def body(self, content_hash: str) -> bytes:
        """The bytes that were written. Raises StorageError if they are missing or damaged."""

    async def captures(self, name: str) -> list[Capture]:
        """The captures in this object. Raises StorageError if it is missing or damaged."""

    def scan(self, crawl: str) -> AsyncIterator[list[Capture]]:
        """Stream all captures of a crawl, one object at a time, in no special order and in flat memory."""

    async def crawls(self) -> list[str]:
        """The crawls that have captures."""

    async def write_log(self, name: str, octets: bytes) -> None:
        """Store a file of log lines under its name, log/…, replacing a file of that name. It is stored whole when this
        returns."""

    async def read_log(self, name: str) -> bytes:
        """The bytes of a log file. Raises StorageError if it is missing."""

    async def delete_crawl(self, crawl: str, *, counts_only: bool = False) -> Removal:
        """Delete the captures of a crawl, and the bodies that no other crawl needs; `counts_only`: only count them.
        Reads the captures of all crawls. After a crash, call again.

        Workers rely on bodies that they have seen: if another crawl has written pages within the last hour and a body
        would be deleted, this refuses and deletes nothing."""

    async def close(self) -> None:
        """Close connections and threads."""


def packed(meta: dict[str, Any] | None) -> dict[str, Any]:
    """The fields of a capture for this meta: JSON that people can read, or MessagePack if JSON would change a type."""
    if not meta:
        return {}
    try:
        if msgspec.json.decode(msgspec.json.encode(meta)) == meta:
            return {"meta": meta}
    except (TypeError, ValueError):
        pass
    return {"packed_meta": msgspec.msgpack.encode(meta)}


def task_of(capture: Capture, *, lane: str) -> Task:
    """The task that was fetched, with the fields that a handler may read."""
    meta = capture.meta
    if capture.packed_meta is not None:
        meta = msgspec.msgpack.decode(capture.packed_meta, type=dict[str, Any])
    return Task(
        url=capture.url,
        key=capture.key,
        lane=lane,
        handler=capture.handler,
        depth=capture.depth,
        priority=capture.priority,
        method=capture.method,
        meta=meta,
    )
