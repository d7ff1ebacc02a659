"""The archive's contract: where raw pages go. An archived page is a capture: what was answered, when, to which task."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import msgspec

from shoal.model import Task


class Capture(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the archive tells of one page. `headers` are as received, `size` and `content_hash` those of the body as a
    handler saw it. Of the request only what replay needs is kept: its headers and its body may hold passwords."""

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
    packed_meta: bytes | None = None  # MessagePack, for a meta that JSON would give back changed


class RawPage(msgspec.Struct, frozen=True):
    """A capture with its body, on the way to the archive."""

    capture: Capture
    body: bytes


class Archive(Protocol):
    async def write(self, pages: Sequence[RawPage]) -> list[str]:
        """Keep all these pages; gives for each the name of the object that tells of it. When it returns they are there,
        whole. Equal bodies are kept once, and writing the same pages again is harmless."""

    async def body(self, content_hash: str) -> bytes:
        """The bytes that were written, or a StorageError when they are missing or damaged."""

    async def captures(self, name: str) -> list[Capture]:
        """What the object of this name tells of. Raises StorageError when it is missing or damaged."""

    def scan(self, crawl: str) -> AsyncIterator[list[Capture]]:
        """Everything that was captured in a crawl, an object at a time, in no special order and in flat memory."""

    async def crawls(self) -> list[str]:
        """The crawls of which there are captures."""

    async def close(self) -> None:
        """Let go."""


def packed(meta: dict[str, Any] | None) -> dict[str, Any]:
    """The fields of a capture that hold this meta: as JSON that people can read, else in a form that keeps types."""
    if not meta:
        return {}
    try:
        if msgspec.json.decode(msgspec.json.encode(meta)) == meta:
            return {"meta": meta}
    except (TypeError, ValueError):
        pass
    return {"packed_meta": msgspec.msgpack.encode(meta)}


def task_of(capture: Capture, *, lane: str) -> Task:
    """The task that was fetched, as far as a handler may ask for it."""
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
