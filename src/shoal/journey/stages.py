"""Stages: a handler marked `@handler(kind=…)` runs on the archived page, in a worker of that kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from shoal.archive.base import Archive
from shoal.errors import StorageError
from shoal.fetch.base import Response
from shoal.journey.sitemaps import PAGES
from shoal.model import HTTP, STAGE, Handed, LaneUpdate, Lease, Task, stage_lane

Body = bytes | StorageError
Reach = Callable[[Callable[[], Awaitable[Body]]], Awaitable[Body]]

_PAGE, _META = "page", "meta"


class FetchedPage(msgspec.Struct, frozen=True, kw_only=True):
    """A fetched page in the meta of its task; its body is in the archive.

    `archived`: the object with its capture; `lane`, `kind`: those of the task that fetched it."""

    url: str
    status: int
    headers: dict[str, str]
    content_hash: str
    lane: str
    archived: str = ""
    kind: str = HTTP


class Stages:
    """Hands pages over to other kinds of workers, and reads pages handed over to this one.

    `elsewhere`: kinds of the handlers that run in other workers. `reach`: repeats a step until the archive can be
    reached."""

    def __init__(
        self, elsewhere: Mapping[str, str] | None = None, *, archive: Archive | None = None, reach: Reach
    ) -> None:
        self._elsewhere = elsewhere or {}
        self._archive = archive
        self._reach = reach

    def kind_of(self, task: Task) -> str | None:
        """The kind of the workers that handle this page; None: this worker does."""
        if not self._elsewhere:
            return None
        name = (task.meta or {}).get("handler", "") if task.handler == PAGES else task.handler
        return self._elsewhere.get(name)

    async def page_of(self, task: Task) -> tuple[Task, Response, FetchedPage]:
        """The task as it was fetched, the response from the archive, and its record. Raises StorageError."""
        fetched, meta = _read(task)
        archive = self._archive
        if archive is None:
            raise StorageError("this worker has no archive to read the page from: start it with --archive")
        body = await self._reach(lambda: _body(archive, fetched.content_hash))
        if isinstance(body, StorageError):
            raise body
        response = Response(
            url=fetched.url,
            status=fetched.status,
            headers=fetched.headers,
            body=body,
            wire_size=len(body),
            elapsed=0.0,
        )
        return msgspec.structs.replace(task, lane=fetched.lane, kind=fetched.kind, meta=meta), response, fetched


async def _body(archive: Archive, content_hash: str) -> Body:
    """A damaged or missing page is a value: `reach` retries only an archive that cannot be reached."""
    try:
        return await archive.body(content_hash)
    except StorageError as error:
        return error


def is_staged(task: Task) -> bool:
    """Whether another worker has fetched the page of this task already."""
    return STAGE in task.lane


def handed_over(
    lease: Lease, kind: str, response: Response, *, headers: dict[str, str], update: LaneUpdate | None
) -> Handed:
    """The result of a lease whose page workers of this kind will handle; the writer adds the capture."""
    task = lease.task
    page = FetchedPage(
        url=response.url,
        status=response.status,
        headers=headers,
        content_hash="",
        lane=task.lane,
        kind=task.kind,
    )
    meta = {_PAGE: msgspec.to_builtins(page), _META: task.meta}
    following = msgspec.structs.replace(task, kind=kind, lane=stage_lane(task.lane, kind), meta=meta, delay=0.0)
    return Handed(lease=lease, task=following, lane=update)


def with_capture(handed: Handed, *, content_hash: str, archived: str) -> Handed:
    """The result with the capture of its page, which was archived now."""
    fetched, meta = _read(handed.task)
    page = msgspec.structs.replace(fetched, content_hash=content_hash, archived=archived)
    task = msgspec.structs.replace(handed.task, meta={_PAGE: msgspec.to_builtins(page), _META: meta})
    return msgspec.structs.replace(handed, task=task)


def _read(task: Task) -> tuple[FetchedPage, dict[str, Any] | None]:
    meta = task.meta or {}
    return msgspec.convert(meta[_PAGE], FetchedPage), meta[_META]
