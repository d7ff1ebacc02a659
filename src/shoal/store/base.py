"""The store contract: items, the fetch log, the outbox of changes for sinks, and old weeks of the log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from shoal.errors import UsageError
from shoal.store.item_views import Views

Change = Literal["new", "changed", "gone"]
# One read of the outbox returns about this many bytes of items.
READ_BYTES = 4 * 1024 * 1024


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """One change of an item that waits for a sink. The changes of one item have rising positions."""

    position: int
    key: str
    version: int
    change: Change
    at: float
    url: str
    crawl: str
    data: bytes


class SinkPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the changes of a spider's items are sent: a URL without secrets.

    `host`: the machine, for a file or a server on loopback; empty: every machine can reach it. `has_secret`: the URL
    was given with a password."""

    spider: str
    url: str
    host: str = ""
    has_secret: bool = False


# Processes that poll a sink count its waiting changes up to this number.
COUNTED: Final = 100_000


class SinkState(msgspec.Struct, frozen=True, kw_only=True):
    """A sink as the store knows it. `sent` counts delivered changes; `trouble` says why the latest delivery failed;
    `holder` is the last process that held the sink.

    `waiting` counts changes that are not delivered yet; `oldest` is the time of the first of them, 0.0 if there is
    none."""

    id: int
    place: SinkPlace
    added: float
    sent: int = 0
    sent_at: float = 0.0
    trouble: str = ""
    trouble_since: float = 0.0
    holder: str = ""
    waiting: int = 0
    oldest: float = 0.0


class Outbox(Protocol):
    """The changes of items that wait for sinks, part of every store. A change is stored in the same step as its item,
    so none is lost between the two.

    While a spider has no sink, its changes are not stored."""

    async def add(self, place: SinkPlace) -> int:
        """Store all changes from now on for this sink; returns its id. A known sink stays as it is."""

    async def sinks(self, spider: str | None = None, *, counted: int | None = None) -> list[SinkState]:
        """The sinks of a spider, or all, in the order in which they were added. `counted`: count at most this many
        waiting changes per sink, where counting all takes long."""

    async def hold(self, sink: int, holder: str, *, seconds: float) -> bool:
        """Lock the sink for `holder` for this many seconds from now; returns whether `holder` has the lock. 0 releases
        it."""

    async def read(self, sink: int, *, limit: int) -> list[Outgoing]:
        """The oldest waiting changes: at most `limit`, and few enough for memory. Changes of one item come in order.

        A change that another writer commits later is returned by a later call, whatever its position."""

    async def passed(self, sink: int, changes: Sequence[Outgoing]) -> None:
        """Delete changes that `read` returned and the sink has received; clears the trouble of the sink."""

    async def failed(self, sink: int, why: str) -> None:
        """Note why the sink did not receive its changes. They stay."""

    async def replay(self, sink: int, *, since: float | None = None) -> int:
        """Queue all items of the sink's spider again as they are now, or only items that changed at `since` or later;
        returns how many. They are queued as new, behind the waiting changes."""

    async def remove(self, sink: int) -> None:
        """Delete a sink and all changes that wait for it."""


class ItemRow(msgspec.Struct, frozen=True, kw_only=True):
    """One item. `(spider, key)` is its identity; an older `token` never overwrites a newer one; `data` is JSON."""

    spider: str
    key: str
    crawl: str
    url: str
    data: bytes
    token: int
    at: float


class ItemRule(msgspec.Struct, frozen=True, kw_only=True):
    """What writing an item again does to the stored item.

    `merge`: "replace" keeps the newer scrape; "fill" also keeps fields that only the older scrape has (absent and null
    are the same), in whichever order the two are written. `freshness`: an item is not written again within this many
    seconds. `keep_versions`: all former contents of an item stay readable."""

    merge: Literal["replace", "fill"] = "replace"
    freshness: float = 0.0
    keep_versions: bool = False


class FetchRow(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at one task: a line of the fetch log that `shoal why` reads."""

    crawl: str
    key: int
    url: str
    outcome: str
    token: int
    attempt: int
    at: float
    status: int = 0
    final_url: str = ""
    worker: str = ""
    exit: str = ""
    size: int = 0
    elapsed: float = 0.0
    error: str = ""
    parent: int | None = None
    content_hash: str = ""  # SHA-256 of the body in hex; empty if the store wants no hashes
    archived: str = ""  # name of the archive object that holds the capture of this page
    request: str = ""  # method, and size and hash of the body; empty: a plain GET
    item_keys: str = ""  # keys of the page's items, see `named_keys`; empty: the handler did not finish
    etag: str = ""  # validators of the response; empty if longer than VALIDATOR_LENGTH
    last_modified: str = ""


class ScrapedPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page was scraped at a time and had exactly the items with these keys, written now or earlier.

    `url` is spelled as in the `ItemRow`s of the page. `token` is the token of the lease: an older scrape neither brings
    an item back nor marks it missing. 0: unknown, only times are compared."""

    spider: str
    url: str
    keys: tuple[str, ...]
    at: float
    token: int = 0


class StoredItem(msgspec.Struct, frozen=True, kw_only=True):
    """A stored item. `version` counts its contents so far; `changed_at` is the time of the latest content.

    `gone_at`: since when the item is known to be no longer on the site; None: not known to be gone."""

    spider: str
    key: str
    crawl: str
    url: str
    data: bytes
    first_seen: float
    last_seen: float
    changed_at: float
    version: int = 1
    gone_at: float | None = None


# The log line of a page names this many of its items; ALL_ITEMS_NAMED where all of them are needed.
ITEMS_NAMED = 10
ALL_ITEMS_NAMED = 500
NAMED_BYTES = 16 * 1024
# Longer validators (ETag, Last-Modified) are not stored.
VALIDATOR_LENGTH = 500
# The log keeps at least this many attempts per task.
ATTEMPTS_KEPT = 20
# One call of `newest` searches at most this many items.
LOOKED_THROUGH = 20_000


class ItemFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects items that match every given field. `crawl` is the crawl that wrote the item last."""

    spider: str | None = None
    crawl: str | None = None
    since: float | None = None  # seen at that time or later
    changed_since: float | None = None
    url_prefix: str | None = None
    gone: bool | None = None  # only items that are gone, or only those that are not


class ItemPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of items, newest first. `after` is the position of the next page; empty: this is the last page."""

    items: list[StoredItem]
    after: str = ""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """How an item differs between two moments, and since when. `before` and `after` are its contents at the two
    moments, where they are known. `untold`: unknown whether it has changed."""

    key: str
    url: str
    change: Literal["new", "changed", "gone", "untold"]
    at: float
    before: bytes | None = None
    after: bytes | None = None


class QueryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a statement, at most the limit, and whether there are more."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    has_more: bool = False


def named_keys(keys: Sequence[str], *, limit: int = ITEMS_NAMED) -> str:
    """The keys of a page's items for its log line: a JSON array that ends in null if it is cut."""
    named: list[str | None] = list(keys[:limit])
    size = sum(len(key) for key in keys[:limit])
    while named and size > NAMED_BYTES:
        size -= len(named.pop() or "")
    if len(named) < len(keys):
        named.append(None)
    try:
        return msgspec.json.encode(named).decode()
    except UnicodeEncodeError:
        # Half of a surrogate pair: no store accepts the item; its page becomes a dead letter that names it.
        return ""


def some_item_keys(row: FetchRow) -> list[str]:
    """The keys that a log line names."""
    return [key for key in _decoded_keys(row) if key is not None]


def all_item_keys(row: FetchRow) -> list[str] | None:
    """The keys of all items of the page; None if the line may not name all of them, also after a fault."""
    keys = _decoded_keys(row)
    if not row.item_keys or None in keys or row.error:
        return None
    return [key for key in keys if key is not None]


def _decoded_keys(row: FetchRow) -> list[str | None]:
    return msgspec.json.decode(row.item_keys, type=list[str | None]) if row.item_keys else []


def wrong_position(after: str) -> UsageError:
    """The error for an `after` that this store did not return."""
    return UsageError(f"{after[:100]!r} is no position among items: give the one of the page before, or none")


def like_pattern(text: str) -> str:
    """The LIKE pattern of texts that contain this text, escaped by \\."""
    for special in ("\\", "%", "_"):
        text = text.replace(special, f"\\{special}")
    return f"%{text}%"


class LogPart(msgspec.Struct, frozen=True, kw_only=True):
    """Log lines of one week, to be written as one file. After a crash the same name comes again, with the lines that
    are left, perhaps none. `begun_in`: the archive in which the part was begun, if it is another one."""

    name: str
    week: str  # its Monday
    lines: list[FetchRow]
    begun_in: str = ""


class MovedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A file of log lines that were moved out of the store."""

    week: str
    archive: str
    name: str
    lines: int
    moved_at: float


Put = Callable[[LogPart], Awaitable[None]]


class LogWeeks(Protocol):
    """The weeks of a store's log. A week begins on Monday, UTC."""

    def move(self, *, retention: float, archive: str, put: Put) -> AsyncIterator[int]:
        """Pass the lines of weeks that ended over `retention` seconds ago to `put`, oldest week first, in bounded
        parts; delete each part when `put` has returned, and yield its number of lines. `archive` is the place that
        `put` writes to, shown to people.

        No line is lost or written under two names if a process dies. While one process moves the log of a store, other
        callers move nothing."""

    async def moved(self) -> list[MovedPart]:
        """All moved files, by week and time."""


class Store(Protocol):
    @property
    def wants_hashes(self) -> bool:
        """Whether log lines need the hash of each page, which costs some time."""

    @property
    def outbox(self) -> Outbox:
        """The changes of items that wait for sinks."""

    @property
    def views(self) -> Views:
        """Items in columns of their own. A store without SQL tables refuses and names an alternative."""

    @property
    def log_weeks(self) -> LogWeeks:
        """Old weeks of the log, to be moved before they are deleted. A store whose log is files refuses."""

    async def write(
        self,
        items: Sequence[ItemRow],
        fetches: Sequence[FetchRow],
        *,
        rule: ItemRule = ItemRule(),
        pages: Sequence[ScrapedPage] = (),
    ) -> dict[int, str]:
        """Write all rows or none, except items that can never be stored: returns why, by index in `items`.

        Writing a row again is harmless; an older token never overwrites a newer one. An item with unchanged content
        only gets a new `last_seen`, and so does an item that is too fresh to be written. Several rows of one identity:
        as if written one by one.

        `pages` are applied after the items. An item that a page names was seen at the time of the page. An item with
        the URL of the page that is not among its keys is missing since then, unless it was seen later. An item seen
        again, by a page or row that is not older in token and time, is neither missing nor gone."""

    async def mark_gone(
        self, spider: str, *, at: float, missing_before: float | None = None, unseen_since: float | None = None
    ) -> int:
        """Mark items as gone at a time: items missing since before `missing_before`, and items last seen before
        `unseen_since`; returns how many were newly marked. Works in batches; a repeated call changes nothing. The items
        stay stored.

        Each marked item is a change for the sinks of the spider; an item that comes back is one more change, as new."""

    def items(self, which: ItemFilter = ItemFilter()) -> AsyncIterator[StoredItem]:
        """Stream items in a stable order, in flat memory: each item stored at the start comes once, even if it is
        written again meanwhile."""

    def versions(self, which: ItemFilter = ItemFilter()) -> AsyncIterator[StoredItem]:
        """Every kept version of these items, oldest first per item."""

    def differences(self, spider: str, *, since: float, until: float) -> AsyncIterator[Difference]:
        """Stream how the spider's items differ at the second moment from the first, in flat memory; items that are
        equal, or absent at both moments, are left out.

        Old contents are known where versions were kept. Without them, an item that changed between the moments is
        `changed`, and one that also changed after the second moment is `untold`. Only the last absence of an item is
        stored: an item that was gone several times is `untold` before it."""

    async def count_items(self, which: ItemFilter = ItemFilter()) -> int:
        """Count the items that match."""

    async def count_by_crawl(self, spider: str) -> dict[str, int]:
        """How many items of the spider each crawl wrote last; crawls without items are left out."""

    async def newest(
        self, which: ItemFilter = ItemFilter(), *, limit: int, after: str = "", search: str = ""
    ) -> ItemPage:
        """Up to `limit` items, newest first; an item that is written again may keep its place. `after` comes from the
        page before. Large items make a page shorter.

        `search`: only items with this text in key, URL or fields; ASCII letters match in upper and lower case. Each
        call searches a bounded number of items: a page may have few items, or none, and still an `after`."""

    async def items_named(self, spider: str, keys: Sequence[str]) -> list[StoredItem]:
        """The stored items of the spider with these keys (a few dozen at most), in the order of the keys."""

    async def fetches(self, crawl: str, keys: Sequence[int]) -> list[FetchRow]:
        """The latest log line of each task. If that attempt archived nothing, the line names the latest archived
        capture."""

    async def fetches_of(self, crawls: Sequence[str], url: str, *, limit: int = 1000) -> list[FetchRow]:
        """The latest log line of each task of these crawls with exactly this URL, newest first.

        Several tasks may have the URL, with other methods, bodies or keys. May read the whole log: for people, not for
        crawls."""

    async def attempts(self, crawl: str, key: int) -> list[FetchRow]:
        """The log lines of the latest ATTEMPTS_KEPT attempts at a task, newest first. Each names only its own capture.

        The line of an attempt that lost its lease is missing if a newer line was written before it."""

    async def tidy(self, *, retention: float) -> int:
        """Delete log lines older than `retention` seconds, in batches; returns how many lines or partitions."""

    async def tidy_versions(self, spider: str | None, *, retention: float) -> int:
        """Delete kept contents of the spider's items, or of all, that were replaced over `retention` seconds ago, in
        batches; returns how many. The contents of the last `retention` seconds stay known, and so does the present
        one."""

    async def query(self, sql: str, *, limit: int) -> QueryAnswer:
        """Run one read-only statement on the store's own tables. A store without SQL refuses."""

    async def has_log(self, crawl: str) -> bool:
        """Whether the fetch log has a line of this crawl."""

    async def delete_crawl(self, crawl: str) -> None:
        """Delete the crawl's fetch log. Items stay: they belong to the spider."""

    async def delete_items(self, spider: str, crawl: str) -> int:
        """Delete the items of the spider that this crawl wrote last, with all their versions; returns how many.

        Deletes in batches; after a crash, call again. Sinks get no change for it; changes that already wait are still
        sent."""

    async def close(self) -> None:
        """Flush and close connections."""
