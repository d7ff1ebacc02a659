"""The types of all bodies, answers and queries of the API, from which the OpenAPI document is made."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from shoal.exits.figures import Health as ExitHealth
from shoal.model import FETCH_BUCKETS, HTTP, CrawlState, Point

MOST_ROWS = 500
USUAL_ROWS = 50

Rows = Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS, description="rows of a page")]
After = Annotated[
    str, msgspec.Meta(max_length=2000, description="where to go on: `next` of the former answer, as it was given")
]
Text = Annotated[str, msgspec.Meta(max_length=2000)]
Moment = Annotated[float, msgspec.Meta(description="seconds since 1970")]
# Times people may give: beyond them a database cannot tell one moment from another.
GivenMoment = Annotated[float, msgspec.Meta(ge=0, le=1e11, description="seconds since 1970")]


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """An answer."""


class Given(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body or a query; unknown fields are refused."""


class NoQuery(Given, frozen=True, kw_only=True):
    """No parameters."""


class Page(Given, frozen=True, kw_only=True):
    limit: Rows = USUAL_ROWS
    after: After | None = None


class ErrorAnswer(Shape, frozen=True, kw_only=True):
    """Why a request was refused or failed, in one line that names what to do."""

    error: str


class Counts(Shape, frozen=True, kw_only=True):
    """The tasks of a crawl by state, and what happened to its leases and links."""

    known: int = 0
    queued: int = 0
    delayed: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    retried: int = 0
    lost: int = 0
    stale: int = 0
    duplicates: int = 0


class LastHost(Shape, frozen=True, kw_only=True):
    """A host that finishes last at its pace."""

    host: str
    waiting: int
    rate: str
    seconds_left: float


class KindOfTasks(Shape, frozen=True, kw_only=True):
    """How many tasks of a kind wait, and how many workers at work do them."""

    kind: str
    waiting: int
    workers: int


class CrawlSummary(Shape, frozen=True, kw_only=True):
    """A crawl at a glance. `errors` are dead letters and retries. `refusal`: why this version cannot use the crawl;
    its counts are unknown then. `kinds` is empty if all tasks have the kind http."""

    id: str
    spider: str
    state: CrawlState
    priority: Annotated[int, msgspec.Meta(description="over other crawls")] = 0
    reason: str = ""
    refusal: str = ""
    created: Moment = 0.0
    finished: Moment | None = None
    counts: Counts = Counts()
    cost: float = 0.0
    budget: float | None = None
    rate: Annotated[float, msgspec.Meta(description="pages per second")] = 0.0
    eta_seconds: float | None = None
    last_hosts: tuple[LastHost, ...] = ()
    bound: str = ""
    workers: Annotated[int, msgspec.Meta(description="workers at work")] = 0
    other_code: Annotated[int, msgspec.Meta(description="those with other code of the spider than the crawl's")] = 0
    errors: int = 0
    kinds: tuple[KindOfTasks, ...] = ()


class ResultPlacesShown(Shape, frozen=True, kw_only=True):
    """Where a crawl's results lie, without secrets."""

    store: str | None = None
    archive: str | None = None
    other_stores: tuple[str, ...] = ()
    other_archives: tuple[str, ...] = ()


class CrawlDetail(CrawlSummary, frozen=True, kw_only=True):
    """A crawl with all its counts and its settings."""

    outcomes: dict[str, int] = {}
    rejected: dict[str, int] = {}
    notes: dict[str, int] = {}
    arguments: dict[str, str] = {}
    settings: dict[str, Any] = {}
    places: ResultPlacesShown = ResultPlacesShown()
    bytes: Annotated[
        int | None, msgspec.Meta(description="what it takes in the frontier, an estimate; null: not known")
    ] = None


class Crawls(Shape, frozen=True, kw_only=True):
    crawls: list[CrawlSummary]
    next: str | None = None


class Alert(Shape, frozen=True, kw_only=True):
    """A firing alert."""

    name: str
    crawl: str = ""
    line: str = ""
    since: Moment = 0.0


class Status(Shape, frozen=True, kw_only=True):
    """This process, its places, and what it cannot reach."""

    version: str
    frontier: str
    store: str | None
    archive: str | None
    problems: list[str]
    role: Literal["admin", "reader"]
    spiders: list[str]
    alerts: list[Alert] = []


class SignIn(Given, frozen=True, kw_only=True):
    token: Annotated[str, msgspec.Meta(max_length=1000)]


class SignedIn(Shape, frozen=True, kw_only=True):
    role: Literal["admin", "reader"]


class Health(Shape, frozen=True, kw_only=True):
    ok: bool
    problems: list[str] = []


class Watched(Given, frozen=True, kw_only=True):
    crawl: Text | None = None


Key = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$", description="the key of a task")]
HostName = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class StartCrawl(Given, frozen=True, kw_only=True):
    """A spider to run: a file of the folder that `shoal serve --spiders` names. `fresh` discards an unfinished crawl of
    the spider; else that one goes on."""

    spider: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    arguments: dict[str, str] = {}
    settings: dict[str, str | int | float | bool] = {}
    workers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    fresh: bool = False


class StartedCrawl(CrawlSummary, frozen=True, kw_only=True):
    """A crawl that was begun or goes on, the process that coordinates it, and the file with its output."""

    pid: int
    log: str


class HistoryQuery(Given, frozen=True, kw_only=True):
    seconds: Annotated[float, msgspec.Meta(ge=1, le=32 * 86_400)] = 300.0
    most: Annotated[int, msgspec.Meta(ge=1, le=2000)] = 300


class History(Shape, frozen=True, kw_only=True):
    """Points of a crawl, oldest first. `buckets`: the upper bounds of `fetch_times` in seconds; one more is above."""

    points: list[Point]
    buckets: tuple[float, ...] = FETCH_BUCKETS


class WorkerShown(Shape, frozen=True, kw_only=True):
    worker: str
    host: str
    pid: int
    machine: str
    state: Literal["at work", "left", "lost"]
    pages: int
    rate: float
    busy: int
    slots: int
    memory_bytes: int
    load: float
    started: Moment
    seen: Moment
    left: Moment
    version: str
    troubles: tuple[str, ...]
    kinds: tuple[str, ...] = (HTTP,)
    other_code: Annotated[bool, msgspec.Meta(description="other code of the spider than the crawl's")] = False


class Workers(Shape, frozen=True, kw_only=True):
    workers: list[WorkerShown]


class PriorityGiven(Given, frozen=True, kw_only=True):
    priority: Annotated[int, msgspec.Meta(ge=-1000, le=1000, description="over other crawls; 0 is the usual one")]


class HostsQuery(Page, frozen=True, kw_only=True):
    search: Text = ""


class HostShown(Shape, frozen=True, kw_only=True):
    """A host, or a host via a pool. `why` is why it rests and until when, or why it has another pace than the
    crawl: "429, asked to wait 600 s (Retry-After); rests until 14:03:10"."""

    host: str
    waiting: int
    in_flight: int
    rate: str
    interval: float
    cap: int
    starts_in: float
    resting: bool
    why: str
    known: int
    has_rules: bool
    blocked: bool = False
    boosted: bool = False


class Hosts(Shape, frozen=True, kw_only=True):
    hosts: list[HostShown]
    next: str | None = None


class HostChange(Given, frozen=True, kw_only=True):
    """One of: a pace of its own, such as "2/s"; no requests until it is unblocked; four times the crawl's pace."""

    rate: Annotated[str, msgspec.Meta(max_length=50)] | None = None
    blocked: bool | None = None
    boost: bool | None = None


class ExitShown(Shape, frozen=True, kw_only=True):
    exit: str
    host: str
    requests: int
    ok: int
    blocked: int
    failed: int
    in_flight: int
    bytes: int
    seconds: float
    cost: float
    state: ExitHealth
    rests_for: float
    machine: Annotated[str, msgspec.Meta(description="that alone has it; empty: every worker has it")] = ""
    offered: Annotated[bool, msgspec.Meta(description="false: no worker of its machine is at work")] = True


class OfferShown(Shape, frozen=True, kw_only=True):
    """The exits that a machine offers to a pool, and the number of workers there that use them."""

    machine: str
    pool: str
    exits: int
    workers: int


class Exits(Shape, frozen=True, kw_only=True):
    exits: list[ExitShown]
    next: str | None = None
    offers: list[OfferShown] = []


class ItemsQuery(Page, frozen=True, kw_only=True):
    search: Annotated[str, msgspec.Meta(max_length=200)] = ""
    since: GivenMoment | None = None


class ItemShown(Shape, frozen=True, kw_only=True):
    key: str
    url: str
    data: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]
    first_seen: Moment
    last_seen: Moment
    changed_at: Moment
    version: int
    gone_at: Moment | None = None


class Items(Shape, frozen=True, kw_only=True):
    """Items, newest first. A search looks through a bounded number: a page with few items may have a `next`."""

    items: list[ItemShown]
    next: str | None = None


class LettersQuery(Page, frozen=True, kw_only=True):
    host: HostName | None = None
    reason: Text | None = None
    since: GivenMoment | None = None


class LetterShown(Shape, frozen=True, kw_only=True):
    key: Key
    url: str
    host: str
    reason: str
    detail: str
    attempts: int
    at: Moment
    method: str
    handler: str


class Letters(Shape, frozen=True, kw_only=True):
    """Dead letters, newest first. `total` counts all of the crawl, `matching` those that the filter selects on all
    pages; `matching_is_least`: only the newest 20,000 were read, there may be more."""

    letters: list[LetterShown]
    total: int
    matching: int
    matching_is_least: bool = False
    next: str | None = None


class LetterChoice(Given, frozen=True, kw_only=True):
    """Which dead letters: one by its key, those that match every field given, or all."""

    key: Key | None = None
    host: HostName | None = None
    reason: Text | None = None
    since: GivenMoment | None = None
    all: bool = False


class Requeued(Shape, frozen=True, kw_only=True):
    requeued: int


class Dropped(Shape, frozen=True, kw_only=True):
    dropped: int


class RejectedReason(Shape, frozen=True, kw_only=True):
    reason: str
    count: int
    meaning: str
    samples: list[str]


class Rejected(Shape, frozen=True, kw_only=True):
    reasons: list[RejectedReason]


class FateQuery(Given, frozen=True, kw_only=True):
    url: Annotated[str, msgspec.Meta(min_length=1, max_length=10_000)]
    method: Annotated[str, msgspec.Meta(max_length=20)] | None = None


class Fates(Shape, frozen=True, kw_only=True):
    """What became of every task of a URL, as `shoal why --json` prints it."""

    fates: list[dict[str, Any]]


class PageQuery(Given, frozen=True, kw_only=True):
    key: Key


class AddedUrls(Shape, frozen=True, kw_only=True):
    """What became of the lines that were taken. `error`: why the rest was refused."""

    taken: int
    new: int
    duplicates: int
    rejected: dict[str, int]
    error: str = ""
