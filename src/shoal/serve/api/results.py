"""Results over HTTP: the newest items, an archived page."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from shoal.archive.base import Capture
from shoal.errors import StorageError, UsageError
from shoal.frontier.rules.keys import key_given
from shoal.model import Crawl
from shoal.serve.answers import Refusal, cursor, position
from shoal.serve.api.operations import Call
from shoal.serve.api.shapes import Items, ItemShown
from shoal.store.base import ItemFilter, StoredItem
from shoal.urls.charset import charset_of, text_of

PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Disposition": 'attachment; filename="page.txt"',
    "Content-Security-Policy": "sandbox; default-src 'none'",
}


async def list_items(call: Call) -> Items:
    """The items of the crawl, newest first."""
    wanted = call.query
    after = "" if wanted.after is None else position(wanted.after, str)
    async with call.reading() as (_, crawl):
        pass
    which = ItemFilter(spider=crawl.spider, crawl=crawl.id, since=wanted.since)
    async with call.parts.store_of(crawl).using() as store:
        page = await store.newest(which, limit=wanted.limit, after=after, search=wanted.search)
    return Items(items=[_item(item) for item in page.items], next=cursor(page.after) if page.after else None)


def _item(item: StoredItem) -> ItemShown:
    return ItemShown(
        key=item.key,
        url=item.url,
        data=msgspec.Raw(item.data),
        first_seen=item.first_seen,
        last_seen=item.last_seen,
        changed_at=item.changed_at,
        version=item.version,
        gone_at=item.gone_at,
    )


async def show_page(call: Call) -> Response:
    """The archived page of a task, as plain text for download."""
    key = key_given(call.query.key)
    async with call.reading() as (_, crawl):
        pass
    async with call.parts.store_of(crawl).using() as store:
        rows = await store.fetches(crawl.id, [key])
    name = next((row.archived for row in rows if row.archived), "")
    capture, body = await _archived(call, crawl, name, key)
    text = text_of(body, charset_of(body, capture.headers.get("content-type")))
    # Not with its own media type: a browser would run it as a page of this server.
    return Response(text.encode("utf-8", "replace"), media_type="text/plain; charset=utf-8", headers=PAGE_HEADERS)


async def _archived(call: Call, crawl: Crawl, name: str, key: int) -> tuple[Capture, bytes]:
    missing = Refusal(404, f"{crawl.id} has no archived page with this key")
    if not name:
        raise missing
    try:
        archive = call.parts.archive_of(crawl)
    except UsageError as error:
        raise Refusal(409, str(error)) from None
    async with archive.using(seconds=20.0) as pages:
        try:
            captures = [one for one in await pages.captures(name) if one.key == key]
        except StorageError:
            raise missing from None
        if not captures:
            raise missing
        latest = max(captures, key=lambda one: (one.at, one.token))
        return latest, await pages.body(latest.content_hash)
