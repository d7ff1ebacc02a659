"""The end of a page's journey: the result of its lease, and the rows that must be stored first."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from shoal.archive.base import Capture, RawPage, packed
from shoal.fetch.base import Fault, Response
from shoal.journey.harvest import KeyedItem
from shoal.model import Dead, Lease, Released, Result, Retry, Task
from shoal.policy.failures import BYTES
from shoal.store.base import ALL_ITEMS_NAMED, ITEMS_NAMED, FetchRow, ItemRow, ScrapedPage, named_keys

KEY_SHOWN = 60
NOT_SENT = "not_modified"  # the outcome of pages that came without a body

# What is kept of a page's body: nothing, its hash in the fetch log, or the hash and the page in the archive.
Keeping = Literal["nothing", "hash", "page"]


class Finished(msgspec.Struct, frozen=True):
    """The result of one page's lease, and the rows that must be stored before it is settled.

    - `unstorable`: why an item could not become a row: the page becomes a dead letter
    - `page`: the raw page, to be archived before everything else
    - `harvest`: the fingerprint of the page's items and links, if it is visited again
    - `look`: the items that the page has now, if it is visited again
    """

    result: Result
    items: Sequence[ItemRow] = ()
    fetch: FetchRow | None = None
    unstorable: str = ""
    page: RawPage | None = None
    harvest: int = 0
    look: ScrapedPage | None = None


def weighed(finished: Finished) -> Finished:
    """The result with a note of the page's bytes, for the setting `max_bytes`."""
    row, result = finished.fetch, finished.result
    if row is None or not row.size or row.outcome == NOT_SENT or isinstance(result, Released):
        return finished
    counted = msgspec.structs.replace(result, notes={**result.notes, BYTES: row.size})
    return msgspec.structs.replace(finished, result=counted)


class Records:
    """Makes the rows of a worker's pages: for the fetch log, for the store and for the archive."""

    def __init__(
        self,
        *,
        spider_name: str,
        worker: str,
        keeping: Keeping,
        clock: Callable[[], float],
        is_revisited: Callable[[Task], bool] = lambda _: False,
    ) -> None:
        self._spider_name = spider_name
        self._worker = worker
        self._keeping = keeping
        self._clock = clock
        self._is_revisited = is_revisited

    def finished(self, result: Result, outcome: str, answer: Response | Fault | None = None) -> Finished:
        """A result without items, and its row in the fetch log."""
        error = result.reason if isinstance(result, Retry | Dead) else ""
        return Finished(result, fetch=self.fetch_row(result.lease, outcome, answer, error=error))

    def failed(self, result: Retry | Dead, outcome: str, answer: Response | Fault | None) -> Finished:
        """The result of a page that could not be fetched, with the outcome `retry:…` if it is retried."""
        return self.finished(result, outcome if isinstance(result, Dead) else f"retry:{outcome}", answer)

    def fetch_row(
        self,
        lease: Lease,
        outcome: str,
        answer: Response | Fault | None = None,
        *,
        error: str = "",
        items: Sequence[KeyedItem] | None = None,
    ) -> FetchRow:
        """The row of a lease in the fetch log. It names the first items; `items=None`: no handler ran."""
        task = lease.task
        status, size, content_hash, final_url = 0, 0, "", ""
        if isinstance(answer, Response):
            status, size = answer.status, len(answer.body)
            final_url = "" if answer.url == task.url else answer.url
            content_hash = "" if self._keeping == "nothing" else hashlib.sha256(answer.body).hexdigest()
        headers = answer.headers if isinstance(answer, Response) else {}
        # If the page has not changed at its next visit, its items are read from this row: it must name all.
        named = ALL_ITEMS_NAMED if items is not None and self._is_revisited(task) else ITEMS_NAMED
        return FetchRow(
            crawl=lease.crawl,
            key=task.key,
            url=task.url,
            outcome=outcome,
            token=lease.token,
            attempt=lease.attempt,
            at=self._clock(),
            status=status,
            worker=self._worker,
            exit=lease.exit,
            size=size,
            elapsed=answer.elapsed if answer is not None else 0.0,
            error=error,
            parent=task.parent,
            final_url=final_url,
            content_hash=content_hash,
            request="" if task.method == "GET" and not task.body else request_of(task),
            item_keys="" if items is None else named_keys([item.key for item in items], limit=named),
            etag=headers.get("etag", ""),
            last_modified=headers.get("last-modified", ""),
        )

    def item_rows(self, items: Sequence[KeyedItem], *, lease: Lease, url: str) -> list[ItemRow]:
        """The items of the page at `url` as rows of the store."""
        at = self._clock()
        return [
            ItemRow(
                spider=self._spider_name,
                key=item.key,
                crawl=lease.crawl,
                url=url,
                data=item.data,
                token=lease.token,
                at=at,
            )
            for item in items
        ]

    def look(self, keys: Sequence[str], *, lease: Lease, url: str) -> ScrapedPage | None:
        """A record that the page at `url` has exactly these items now; None: the page is visited only once."""
        if not self._is_revisited(lease.task):
            return None
        return ScrapedPage(spider=self._spider_name, url=url, keys=tuple(keys), at=self._clock(), token=lease.token)

    def with_page(self, finished: Finished, response: Response, *, headers: dict[str, str]) -> Finished:
        """The result with its raw page, if pages are archived; also after a failed handler, for `shoal replay`.

        headers: those of the response, without secrets."""
        row, lease = finished.fetch, finished.result.lease
        if self._keeping != "page" or row is None:
            return finished
        task = lease.task
        capture = Capture(
            crawl=lease.crawl,
            url=task.url,
            final_url=response.url,
            key=task.key,
            status=response.status,
            headers=headers,
            at=row.at,
            token=lease.token,
            content_hash=row.content_hash,
            size=len(response.body),
            method=task.method,
            attempt=lease.attempt,
            worker=self._worker,
            handler=task.handler,
            depth=task.depth,
            priority=task.priority,
            screenshot=hashlib.sha256(response.screenshot).hexdigest() if response.screenshot else "",
            **packed(task.meta),
        )
        return msgspec.structs.replace(finished, page=RawPage(capture, response.body, response.screenshot))


def request_of(task: Task) -> str:
    """The method, and the size and a short hash of the body: it tells tasks with one URL apart without secrets."""
    body = task.body
    return f"{task.method} {len(body)} B {hashlib.blake2b(body, digest_size=4).hexdigest()}" if body else task.method


def unstorable_item(key: str, why: str) -> str:
    """The reason of a dead letter: an item that cannot be stored."""
    name = key if len(key) <= KEY_SHOWN else f"{key[: KEY_SHOWN - 1]}…"
    return f"unstorable: item {name!r}: {why}".encode("utf-8", "backslashreplace").decode()
