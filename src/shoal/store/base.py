"""The store's contract: where items and the fetch log go.

The outbox's contract: changes of items that wait in the store until their sinks have them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from shoal.errors import UsageError
from shoal.store.item_views import Views

# `gone` is for items that are not seen any more; no store writes it yet.
Change = Literal["new", "changed", "gone"]
# About how many bytes of items one read gives.
READ_BYTES = 4 * 1024 * 1024


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """One change of an item that a sink is to get. Positions rise in the order in which an item changed."""

    position: int
    key: str
    version: int
    change: Change
    at: float
    url: str
    crawl: str
    data: bytes


class SinkPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the changes of a spider's items go: a URL without secrets.

    `host`: the machine of a file or of a server at a loopback address; empty: every machine reaches it. `has_secret`:
    its URL was given with a password."""

    spider: str
    url: str
    host: str = ""
    has_secret: bool = False


# How many waiting changes of a sink a process counts that looks again and again.
COUNTED: Final = 100_000


class SinkState(msgspec.Struct, frozen=True, kw_only=True):
    """A sink as the store knows it. `sent` counts delivered changes; `trouble` says why the latest ones are not;
    `holder` is who had the duty last.

    `waiting` changes are not delivered yet, and have waited since `oldest` at most; 0.0: none does."""

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
    """Part of every store. A change is in it from the step on that stores the item: none is lost between the two.

    Nothing is kept while a spider has no sink."""

    async def add(self, place: SinkPlace) -> int:
        """Keep every change from now on for this sink; gives its id. One that is there already stays as it is."""

    async def sinks(self, spider: str | None = None, *, counted: int | None = None) -> list[SinkState]:
        """The sinks of a spider, or all, in the order in which they were added. `counted`: of the changes that wait for
        a sink no more are counted, where counting all would take long."""

    async def hold(self, sink: int, holder: str, *, seconds: float) -> bool:
        """Hold the duty to send to a sink, for so long from now; gives whether it is ours. 0: leave it to others."""

    async def read(self, sink: int, *, limit: int) -> list[Outgoing]:
        """The oldest changes that wait, at most `limit`, and few enough for memory. Those of one item come in order.

        A change that another writer commits later is given by a later call, whatever its position."""

    async def passed(self, sink: int, changes: Sequence[Outgoing]) -> None:
        """The sink has these changes, which `read` gave: drop them. Its trouble is over."""

    async def failed(self, sink: int, why: str) -> None:
        """Note why the sink did not get its changes. They stay."""

    async def replay(self, sink: int, *, since: float | None = None) -> int:
        """Queue all items of the sink's spider once more, as they are now, or those that changed at a time or later;
        gives how many. They come as new, behind what waits."""

    async def remove(self, sink: int) -> None:
        """Forget a sink with all that waits for it."""


class ItemRow(msgspec.Struct, frozen=True, kw_only=True):
    """One result. `(spider, key)` is its identity; `token` fences older scrapes; `data` is JSON."""

    spider: str
    key: str
    crawl: str
    url: str
    data: bytes
    token: int
    at: float


class ItemRule(msgspec.Struct, frozen=True, kw_only=True):
    """What writing an item again does to the stored one.

    `merge`: "replace" keeps the newer scrape; "fill" also keeps fields that only the older scrape has (absent and null
    are the same), whichever of the two is written first.
    `freshness`: for this many seconds after a write the item is not written again.
    `keep_versions`: every content an item ever had stays readable."""

    merge: Literal["replace", "fill"] = "replace"
    freshness: float = 0.0
    keep_versions: bool = False


class FetchRow(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at one task: the line of the fetch log that `shoal why` reads."""

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
    content_hash: str = ""  # SHA-256 of the body in hex; empty where no hashes are wanted
    archived: str = ""  # the name of the archive's object with the capture of this page
    request: str = ""  # method, and size and hash of the body; empty: a plain GET, or a line of an older shoal
    item_keys: str = ""  # the keys of the page's items, by `named_keys`; empty: no handler ran to its end
    etag: str = ""  # the validators of the answer, each at most VALIDATOR_LENGTH characters, else empty
    last_modified: str = ""


class PageLook(msgspec.Struct, frozen=True, kw_only=True):
    """The page at `url` was looked at, at a time: it has exactly the items with these keys, written now or earlier.

    `url` is spelled as in the `ItemRow`s of the page. `token` is that of the lease: older scrapes than this one neither
    bring an item back nor call it missing. 0: unknown, only times are compared."""

    spider: str
    url: str
    keys: tuple[str, ...]
    at: float
    token: int = 0


class StoredItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item as it is stored. `version` counts its contents so far; `changed_at` is when the latest one came.

    `gone_at`: since when it is known to be no longer on the site; None: it is there, as far as anybody looked."""

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


# How many items of a page its log line names; and how many where that is to be all of them.
ITEMS_NAMED = 10
ALL_ITEMS_NAMED = 500
NAMED_BYTES = 16 * 1024
# The longest validator that the log keeps.
VALIDATOR_LENGTH = 500
# How many attempts at a task the log keeps at least.
ATTEMPTS_KEPT = 20
# How many items a search for the newest ones looks through per call.
LOOKED_THROUGH = 20_000


class ItemFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which items are meant: those that match every field given. `crawl` is the crawl that wrote the item last."""

    spider: str | None = None
    crawl: str | None = None
    since: float | None = None  # seen at that time or later
    changed_since: float | None = None
    url_prefix: str | None = None
    gone: bool | None = None  # only items that are gone, or only those that are not


class ItemPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some items, newest first. `after` leads to those that follow; empty: there are none."""

    items: list[StoredItem]
    after: str = ""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """How an item differs between two moments, and when it became so. `before` and `after` are its contents then, where
    they are known. `untold`: it cannot be told whether it has changed."""

    key: str
    url: str
    change: Literal["new", "changed", "gone", "untold"]
    at: float
    before: bytes | None = None
    after: bytes | None = None


class QueryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a statement: at most as many rows as asked for, and whether there are more."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    has_more: bool = False


def named_keys(keys: Sequence[str], *, limit: int = ITEMS_NAMED) -> str:
    """The keys of a page's items for its log line: a JSON array, which ends in null if there are more."""
    named: list[str | None] = list(keys[:limit])
    size = sum(len(key) for key in keys[:limit])
    while named and size > NAMED_BYTES:
        size -= len(named.pop() or "")
    if len(named) < len(keys):
        named.append(None)
    try:
        return msgspec.json.encode(named).decode()
    except UnicodeEncodeError:
        # Half of a surrogate pair: no store takes such an item, and the page ends as a dead letter that names it.
        return ""


def some_item_keys(row: FetchRow) -> list[str]:
    """The keys that a log line names."""
    return [key for key in _decoded_keys(row) if key is not None]


def all_item_keys(row: FetchRow) -> list[str] | None:
    """The keys of all items of the page; None where the line does not say, or there may be more: also after a fault."""
    keys = _decoded_keys(row)
    # Ten keys, as an older shoal wrote them for ten items and for more. It kept no validators.
    is_old = len(keys) == ITEMS_NAMED and not (row.etag or row.last_modified)
    if not row.item_keys or None in keys or is_old or row.error:
        return None
    return [key for key in keys if key is not None]


def _decoded_keys(row: FetchRow) -> list[str | None]:
    return msgspec.json.decode(row.item_keys, type=list[str | None]) if row.item_keys else []


def wrong_position(after: str) -> UsageError:
    """The error of a position that no page of this store has given."""
    return UsageError(f"{after[:100]!r} is no position among items: give the one of the page before, or none")


def like_pattern(text: str) -> str:
    """The pattern of LIKE for texts that have this one in them; \\ escapes."""
    for special in ("\\", "%", "_"):
        text = text.replace(special, f"\\{special}")
    return f"%{text}%"


class LogPart(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of one week, to be written as one file. A part that a process died over is given again under its name, with
    the lines that are there now: also with none. `begun_in`: the archive in which it was begun, if that is another."""

    name: str
    week: str  # its Monday
    lines: list[FetchRow]
    begun_in: str = ""


class MovedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A file of log lines, which are no longer in the store."""

    week: str
    archive: str
    name: str
    lines: int
    moved_at: float


Put = Callable[[LogPart], Awaitable[None]]


class LogWeeks(Protocol):
    """The weeks of a store's log. They begin on Monday, UTC."""

    def move(self, *, retention: float, archive: str, put: Put) -> AsyncIterator[int]:
        """Give the lines of the weeks that ended over `retention` seconds ago to `put`, oldest week first, in bounded
        parts, and drop each part when `put` has returned; each step gives how many lines went. `archive` is where `put`
        writes, for people.

        No line is lost or written under two names, wherever a process dies. While one process moves a store's log,
        others that ask move nothing."""

    async def moved(self) -> list[MovedPart]:
        """What was moved so far, by week and time."""


class Store(Protocol):
    @property
    def wants_hashes(self) -> bool:
        """Whether the log should have the hash of every page; computing it costs a little."""

    @property
    def outbox(self) -> Outbox:
        """The changes of items that wait for the sinks of their spider."""

    @property
    def views(self) -> Views:
        """The items in columns of their own. A store without SQL tables of its own refuses, and says what does it."""

    @property
    def log_weeks(self) -> LogWeeks:
        """Old weeks of the log, moved elsewhere before they are dropped. A store whose log is files already refuses."""

    async def write(
        self,
        items: Sequence[ItemRow],
        fetches: Sequence[FetchRow],
        *,
        rule: ItemRule = ItemRule(),
        looks: Sequence[PageLook] = (),
    ) -> dict[int, str]:
        """Write all rows or none, but for items that can never be stored: gives why, by their index in `items`.

        Writing a row again is harmless; an older token never overwrites a newer. An item whose content is the same
        only moves `last_seen`, and so does one that is too fresh to be written. Several rows of one identity in one
        call: as if they were written one by one.

        `looks` come after the items. An item that a look names was seen then. One whose stored URL is that of the page,
        and which the look does not name, is missing since then, unless it was seen later. An item that is seen again,
        by a look or a row that is older neither by its token nor by its time, is neither missing nor gone."""

    async def mark_gone(
        self, spider: str, *, at: float, missing_before: float | None = None, unseen_since: float | None = None
    ) -> int:
        """Say that items are gone at a time: those missing since before `missing_before`, and those last seen before
        `unseen_since`; gives how many that were not. In bounded steps; asking again changes nothing. They stay stored.

        Each one is a change for the sinks of the spider; if it comes back, that is another one, as new."""

    def items(self, which: ItemFilter = ItemFilter()) -> AsyncIterator[StoredItem]:
        """Stream items in a stable order, in flat memory: each item that is stored at the start comes once, even if it
        is written again meanwhile."""

    def versions(self, which: ItemFilter = ItemFilter()) -> AsyncIterator[StoredItem]:
        """Every kept version of these items, the versions of an item oldest first."""

    def differences(self, spider: str, *, since: float, until: float) -> AsyncIterator[Difference]:
        """Stream how the spider's items differ at the second moment from what they were at the first, in flat memory;
        an item that is the same, or absent at both, is left out.

        Contents of the past are known where versions were kept. An item that has changed in between is `changed` also
        without them; one that has changed after the second moment is then `untold`. Of its absences the last one is
        known: an item that was gone several times is `untold` before that."""

    async def count_items(self, which: ItemFilter = ItemFilter()) -> int:
        """How many items `items` would give."""

    async def count_by_crawl(self, spider: str) -> dict[str, int]:
        """How many items of the spider each crawl wrote last; crawls that have none are absent."""

    async def newest(
        self, which: ItemFilter = ItemFilter(), *, limit: int, after: str = "", search: str = ""
    ) -> ItemPage:
        """Up to `limit` items, those that came last first; one that is written again may keep its place. `after` is
        that of the page before. Large items make a page shorter.

        `search`: only items with this text in their key, URL or fields; ASCII letters match in upper and lower case. A
        bounded number of items is looked through per call: a page may have few items, or none, and an `after`."""

    async def items_named(self, spider: str, keys: Sequence[str]) -> list[StoredItem]:
        """The stored items of the spider with these keys, a few dozen at most, in the order of the keys."""

    async def fetches(self, crawl: str, keys: Sequence[int]) -> list[FetchRow]:
        """The latest log line of each of these tasks. One that archived nothing names the latest archived capture."""

    async def fetches_of(self, crawls: Sequence[str], url: str, *, limit: int = 1000) -> list[FetchRow]:
        """The latest log line of each task of these crawls with exactly this URL, newest first.

        There may be several, with other methods, bodies or keys. A store may read its whole log for that: for people,
        not for crawls."""

    async def attempts(self, crawl: str, key: int) -> list[FetchRow]:
        """The log lines of the latest ATTEMPTS_KEPT attempts at a task, newest first. Each names what it archived
        itself.

        The line of an attempt that lost its lease is missing if a newer one was written before it."""

    async def tidy(self, *, retention: float) -> int:
        """Drop log lines older than `retention` seconds, in bounded steps; gives how many lines or partitions."""

    async def tidy_versions(self, spider: str | None, *, retention: float) -> int:
        """Drop kept contents of the spider's items, or of all, that were replaced over `retention` seconds ago, in
        bounded steps; gives how many. What an item was at any moment since then stays known; its content stays."""

    async def query(self, sql: str, *, limit: int) -> QueryAnswer:
        """Run one statement that only reads, on the store's own tables. A store without SQL says so."""

    async def has_log(self, crawl: str) -> bool:
        """Whether the fetch log has a line of this crawl."""

    async def delete_crawl(self, crawl: str) -> None:
        """Remove the crawl's fetch log. Items stay: they belong to the spider."""

    async def delete_items(self, spider: str, crawl: str) -> int:
        """Remove the items of the spider that this crawl wrote last, with all their versions; gives how many.

        In bounded steps: one that ends half way is gone on with by the next. Sinks are told nothing of it; changes that
        wait for them still go out."""

    async def close(self) -> None:
        """Flush, and let go of connections."""
