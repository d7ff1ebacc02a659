"""The archive's contract: where raw pages go. A capture is one archived answer: its task, its time, its body."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import msgspec

from shoal.model import Task


class Capture(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One archived page without its body. `headers` are as received; `size` and `content_hash` describe the body as
    the handler saw it. Of the request only what replay needs is kept: its headers and its body may hold passwords.

    Encoded by name, unknown names are ignored: new fields have a default."""

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
    screenshot: str = ""  # the hash of a rendered page's picture, which is kept as a body


class RawPage(msgspec.Struct, frozen=True):
    """A capture with its body, on the way to the archive, and the picture of a rendered page."""

    capture: Capture
    body: bytes
    screenshot: bytes = b""


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """What goes with a crawl: its captures, and the bodies and pictures that no capture of another crawl names."""

    captures: int = 0
    bodies: int = 0


class Archive(Protocol):
    async def write(self, pages: Sequence[RawPage]) -> list[str]:
        """Keep all these pages; gives for each page the name of the object that holds its capture. All of them are
        stored when this returns. Equal bodies are kept once, and writing the same pages again is harmless."""

    async def body(self, content_hash: str) -> bytes:
        """The bytes that were written, or a StorageError when they are missing or damaged."""

    async def captures(self, name: str) -> list[Capture]:
        """The captures in the object of this name. Raises StorageError when it is missing or damaged."""

    def scan(self, crawl: str) -> AsyncIterator[list[Capture]]:
        """All captures of a crawl, one object at a time, in no special order and in flat memory."""

    async def crawls(self) -> list[str]:
        """The crawls that have captures."""

    async def write_log(self, name: str, octets: bytes) -> None:
        """Keep a file of log lines under its name, log/…, in place of one that has it. It is stored, whole, when this
        returns."""

    async def read_log(self, name: str) -> bytes:
        """The bytes of such a file as they are stored. Raises StorageError when it is missing."""

    async def delete_crawl(self, crawl: str, *, counts_only: bool = False) -> Removal:
        """Remove the captures of a crawl, and the bodies that no other crawl needs; `counts_only`: only tell what that
        would be. Reads the captures of all crawls. One that ended half way is gone on with by the next.

        A worker that has seen a body counts on it: where another crawl has kept pages within the last hour, bodies that
        would go are a reason to refuse, and nothing is removed."""

    async def close(self) -> None:
        """Let go of connections and threads."""


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
