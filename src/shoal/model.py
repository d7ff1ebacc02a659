"""The nouns of shoal, which travel between spider, worker and frontier. Imports no other module of shoal."""

from __future__ import annotations

import enum
import random
from typing import Any, Final, Literal, NamedTuple

import msgspec

DIRECT = "direct"
DUPLICATE = "duplicate"  # the reason under which links to known pages are counted
VIA = " via "  # between a lane's host and its pool; a lane without it goes out directly
STAGE = " stage "  # between a lane's host and a kind: pages that were fetched wait there for a handler of that kind
NO_EXIT = "no_exit"
REGION = "region:"  # begins the name of a pool that has the exits that workers offer for a region, and no others
HTTP = "http"  # the kind of tasks that name none
BROWSER = "browser"  # the kind of tasks whose pages are rendered
RENDER_WAITS: Final = ("dom", "load", "quiet")
RENDER_BLOCKS: Final = ("image", "media", "font", "stylesheet", "script")
RENDER_STEPS: Final = {"click": str, "scroll": int, "script": str, "wait_for": str}
VISITS = "visits"  # the note of pages that are done until their next visit
# Upper bounds, in seconds, of the groups into which fetches are counted by how long they took; one group more: above.
FETCH_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Visit(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What is known of the visits of a page that is visited more than once. Encoded by position, as tasks are.

    `asked` is the time between visits as the request has it, in seconds; None: the spider's; 0: one visit. `visits` so
    far, the latest one `at` this time; it gave what `harvest` is the fingerprint of. Of `compared` pairs of visits in a
    row, `seconds` apart in all, `changes` gave different things; older pairs count less. `modified` is when the page
    changed last, as a sitemap says. The next visit is `planned` seconds after the latest one."""

    asked: float | None = None
    visits: int = 0
    at: float = 0.0
    harvest: int = 0
    compared: float = 0.0
    changes: float = 0.0
    seconds: float = 0.0
    modified: float = 0.0
    planned: float = 0.0


class Render(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a browser renders the page of a request; plain data, so that any worker of the kind `browser` can do it.

    - `wait`: until when to wait: `dom` (parsed), `load` (with all it loads), `quiet` (no request for half a second)
    - `wait_for`: a CSS selector; the page is ready when an element matches
    - `steps`: what to do then, in order: `{"click": "button.more"}`, `{"scroll": 10}` (to the end, so many times, as
      long as the page grows), `{"script": "…"}`, `{"wait_for": ".book"}`
    - `block`: types of resources that are not fetched: `image`, `media`, `font`, `stylesheet`, `script`
    - `screenshot`: keep a picture of the page: `page.screenshot`, and in the archive
    - `seconds`: deadline for all of it; 0: the setting `render_seconds`
    """

    wait: Literal["dom", "load", "quiet"] = "load"
    wait_for: str = ""
    steps: tuple[dict[str, str | int], ...] = ()
    block: tuple[Literal["image", "media", "font", "stylesheet", "script"], ...] = ()
    screenshot: bool = False
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.wait not in RENDER_WAITS:
            raise ValueError(f"wait of a Render is one of {', '.join(RENDER_WAITS)}, not {self.wait!r}")
        wrong: list[object] = [self.block] if isinstance(self.block, str) else [*{*self.block} - {*RENDER_BLOCKS}]
        if wrong:
            raise ValueError(f"block of a Render is a tuple of some of {', '.join(RENDER_BLOCKS)}, not {wrong[0]!r}")
        for step in self.steps:
            (name, what), *others = step.items() if step else [("", "")]
            kind = RENDER_STEPS.get(name)
            if others or kind is None or type(what) is not kind:
                forms = '{"click": "css"}, {"scroll": 10}, {"script": "…"}, {"wait_for": "css"}'
                raise ValueError(f"a step of a Render is one of {forms}, not {step!r}")


class Task(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One URL to fetch. Encoded by position: new fields go last, with a default.

    `hastens`: where the key is known and its task waits for its next visit, a put of this one makes that visit due now.
    It changes nothing else of that task."""

    url: str
    key: int
    lane: str
    handler: str = "parse"
    depth: int = 0
    priority: int = 0
    delay: float = 0.0
    method: str = "GET"
    headers: dict[str, str] | None = None
    body: bytes | None = None
    meta: dict[str, Any] | None = None
    max_attempts: int = 4
    pool: str = DIRECT
    parent: int | None = None
    created: float = 0.0
    hops: int = 0
    shape: int = 0
    merged: bool = False
    kind: str = HTTP
    visit: Visit | None = None
    render: Render | None = None
    hastens: bool = False


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A task lent to one worker. `wait` is how long to hold the start; `token` lets a frontier refuse a late result.

    `alone`: workers died while they had this task. The worker first ends the pages that it has, then works on this one
    and on nothing else."""

    crawl: str
    task: Task
    token: int
    attempt: int = 1
    free_retries: int = 0
    exit: str = DIRECT
    wait: float = 0.0
    interval: float = 0.0
    base_interval: float = 0.0
    exit_interval: float = 0.0
    opens_lane: bool = False
    rules_version: int = 0
    session_version: int = 0
    alone: bool = False


class LeaseBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one lease call: the leases, or when to ask again.

    `at` is the time on this process's monotonic clock from which each lease's `wait` counts."""

    leases: list[Lease]
    ask_again: float
    at: float
    epoch: int = 0
    finished: tuple[str, ...] = ()


class LaneUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The change that a response makes to its lane; applied in the same step as the settle that carries it.

    `if_interval` guards `interval`: many responses that ask for the same slow-down change the pace once.
    `base_interval` is the lane's own pace, to which an adaptive one returns. `started` is the request's start slot on
    the frontier's clock: a refusal of a request that started before the lane's latest slow-down or the end of its rest
    belongs to the same wave of refusals, and neither slows the lane again nor lets it take another short rest.
    `why` is for people to read, and not for URLs: the reason of the rest or of the slow-down; with a `base_interval`,
    of that pace. `learnt` is the interval that a search has found to be good for the host: kept for its next crawls.
    """

    interval: float | None = None
    if_interval: float | None = None
    base_interval: float | None = None
    cap: int | None = None
    rest_seconds: float | None = None
    rules: bytes | None = None
    rules_seconds: float = 0.0
    started: float | None = None
    why: str = ""
    learnt: float | None = None


class ExitUse(msgspec.Struct, frozen=True, kw_only=True):
    """The report on the exit of a lease. `verdict`: "ok", "blocked" (the host refused the exit), "failed" (no request
    got through), "used" (sent, but it says nothing about the exit) or "unused" (no request was sent).

    `size` is the bytes received through it. `session` replaces the session kept for the exit; empty: log in again."""

    verdict: Literal["ok", "blocked", "failed", "used", "unused"] = "ok"
    size: int = 0
    elapsed: float = 0.0
    session: bytes | None = None


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The task is finished; the tasks it found appear with it or not at all. `notes` are counted for people to read,
    whatever they are called.

    `again`: the page is visited again in `again_in` seconds. The task goes on as this one, which has its key and a lane
    of the same host, with all its attempts; it counts as delayed, not as done."""

    lease: Lease
    outcome: str = "ok"
    found: list[Task] = msgspec.field(default_factory=list)
    rejected: dict[str, int] = msgspec.field(default_factory=dict)
    samples: list[tuple[str, str]] = msgspec.field(default_factory=list)
    lane: LaneUpdate | None = None
    exit: ExitUse | None = None
    notes: dict[str, int] = msgspec.field(default_factory=dict)
    again: Task | None = None
    again_in: float = 0.0


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Try again after `delay` seconds. A free retry gives the attempt back."""

    lease: Lease
    reason: str
    delay: float = 0.0
    free: bool = False
    lane: LaneUpdate | None = None
    exit: ExitUse | None = None
    notes: dict[str, int] = msgspec.field(default_factory=dict)


class Dead(msgspec.Struct, frozen=True, kw_only=True):
    """Give up; the task is kept whole with the reason."""

    lease: Lease
    reason: str
    detail: str = ""
    lane: LaneUpdate | None = None
    exit: ExitUse | None = None
    notes: dict[str, int] = msgspec.field(default_factory=dict)


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """Handed back untouched: at shutdown, or after opening a lane. Uses up no attempt."""

    lease: Lease
    lane: LaneUpdate | None = None
    exit: ExitUse | None = None


class Handed(msgspec.Struct, frozen=True, kw_only=True):
    """Handed over to the next stage: the task goes on as `task`, which has its key, and all its attempts. Its lane is
    one of the same host: see `stage_lane`."""

    lease: Lease
    task: Task
    lane: LaneUpdate | None = None
    exit: ExitUse | None = None
    notes: dict[str, int] = msgspec.field(default_factory=dict)


Result = Done | Retry | Dead | Released | Handed


def stage_lane(lane: str, kind: str) -> str:
    """The lane in which fetched pages of a host wait for handlers of this kind. It has no pace: nothing is fetched."""
    return f"{lane.partition(VIA)[0].partition(STAGE)[0]}{STAGE}{kind}"


class PutReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one put. `refused` names the budget that kept each key out."""

    new: int = 0
    duplicates: int = 0
    refused: dict[int, str] = msgspec.field(default_factory=dict)


class SettleReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one settle call. `stale` leases were lost before it; `refused` names the budget for each key that
    one kept out.

    `failed` says, by its index in the call, why a result could not be applied; its lease stands. `duplicates` are the
    found tasks whose keys were known, each as the token of its lease and its key; not those that live in another shard.
    """

    stale: list[Lease] = msgspec.field(default_factory=list)
    refused: dict[int, str] = msgspec.field(default_factory=dict)
    epoch: int = 0
    failed: dict[int, str] = msgspec.field(default_factory=dict)
    duplicates: list[tuple[int, int]] = msgspec.field(default_factory=list)


class CrawlState(enum.StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    STOPPED = "stopped"


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks a crawl accepts: in all, per lane, per path shape. Zero means no limit."""

    pages: int = 0
    per_lane: int = 0
    per_shape: int = 0
    cost: float = 0.0


class Limit(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What ends a crawl before its work is done: it is stopped for the reason `why` when `of` has come to `most`.

    `of`: a "note" of this name, summed up over the crawl; "ran", the seconds in which workers were there while it was
    running; "wall", the time of day as a Unix time."""

    of: Literal["note", "ran", "wall"]
    most: float
    why: str
    note: str = ""


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Exits that a task may ask for by the pool's name, and their limits for the whole fleet.

    `interval` and `cap` hold for one exit towards one host, `host_interval` and `host_cap` for all exits of the pool
    together towards one host. An exit that is blocked or fails is quarantined for `quarantine` seconds, twice as long
    each time in a row, at most `max_quarantine`; then it is on probation: one request tries it. `exclusive`: one lease
    at a time, whatever the host. `sticky`: a host keeps its exit while the exit is healthy, at most `rotate` seconds
    (0: no limit). When no exit was usable for `patience` seconds, the tasks that wait for one are given up. `region`
    is for people to read, and so are `has_own_rate`, without which `host_interval` is the crawl's, and `written_in`,
    the table of the configuration."""

    name: str
    exits: tuple[str, ...]
    interval: float = 1.0
    cap: int = 1
    host_interval: float = 0.0
    host_cap: int = 1000
    exclusive: bool = False
    sticky: bool = False
    rotate: float = 0.0
    quarantine: float = 60.0
    max_quarantine: float = 3600.0
    patience: float = 3600.0
    cost: float = 0.0
    cost_per_gb: float = 0.0
    region: str = ""
    has_own_rate: bool = True
    written_in: str = "proxies"


class Crawl(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a spider. `interval` and `cap` are the pace a new lane starts with.

    `dedup_ttl` is how many seconds a key stays known after its task has ended; zero: for ever. `feeding`: opened to be
    fed, it is not finished before a feeder has come. `refusal`: why this shoal leaves it alone, such as that another
    version wrote it; empty: it does not. `pace_scope`: whether hosts have their limits over all crawls that say "host",
    decided when the crawl begins. It shares them with others by `weight`. `searches`: a new lane begins with the
    `interval` that an earlier search has learnt of its host, if one is kept; its `base_interval` is the crawl's all the
    same. `limits`: what stops it before its work is done. `keys`: whether it knows its URLs still; those of a finished
    crawl can be dropped, in steps."""

    id: str
    spider: str
    state: CrawlState = CrawlState.RUNNING
    interval: float = 1.0
    cap: int = 8
    needs_rules: bool = False
    budgets: Budgets = msgspec.field(default_factory=Budgets)
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    feeding: bool = False
    created: float = 0.0
    finished: float | None = None
    dedup: str = "exact"
    dedup_ttl: float = 0.0
    pools: tuple[Pool, ...] = ()
    refusal: str = ""
    searches: bool = False
    pace_scope: Literal["host", "crawl"] = "host"
    weight: float = 1.0
    limits: tuple[Limit, ...] = ()
    keys: Literal["known", "dropping", "dropped"] = "known"

    @property
    def priority(self) -> int:
        """Over other crawls; it lies with the settings, which every frontier keeps."""
        kept = self.settings.get("priority", 0)
        return kept if isinstance(kept, int) else 0


class CrawlSize(msgspec.Struct, frozen=True, kw_only=True):
    """What a crawl takes in its frontier. `is_estimate`: measured on some of its records, reckoned for the rest."""

    bytes: int
    is_estimate: bool = True


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A crawl's counters, read in one step. `outcomes`, `rejected` and `notes` count by name.

    `reason` says why the crawl was paused, cancelled or stopped, if that is known. `feeders_lost`: feeders that have
    not fed the start to its end and are gone. `kinds` counts the tasks that wait, queued or delayed, by their kind; it
    is empty in a crawl that never had another kind than `http`. `due_in`: seconds until the first of the delayed tasks
    is due; 0: one is, or there is none. `ran`: the seconds in which workers were there while it was running."""

    state: CrawlState
    feeding: bool = False
    queued: int = 0
    delayed: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    duplicates: int = 0
    stale: int = 0
    retried: int = 0
    lost: int = 0
    outcomes: dict[str, int] = msgspec.field(default_factory=dict)
    rejected: dict[str, int] = msgspec.field(default_factory=dict)
    epoch: int = 0
    cost: float = 0.0
    notes: dict[str, int] = msgspec.field(default_factory=dict)
    reason: str = ""
    feeders_lost: int = 0
    kinds: dict[str, int] = msgspec.field(default_factory=dict)
    due_in: float = 0.0
    ran: float = 0.0

    @property
    def left(self) -> int:
        return self.queued + self.delayed + self.leased

    @property
    def known(self) -> int:
        return self.left + self.done + self.dead + self.cancelled

    @property
    def visits(self) -> int:
        """Visits that ended well, of pages that are visited again."""
        return self.notes.get(VISITS, 0)

    @property
    def ended(self) -> int:
        """How often the work on a page came to an end: for good, or until the next visit."""
        return self.done + self.dead + self.visits

    @property
    def is_finished(self) -> bool:
        return self.left == 0 and not self.feeding


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What another crawl does to a lane that shares its host with it, by what holds the lane back most: "rest" (it was
    asked to wait, for `seconds` more), "rules" (it fetches robots.txt), "cap" (requests in flight leave no room),
    "pace" (it is slower), "turn" (it waits for start slots as well). `more`: so many other crawls do the same.

    `interval` is the longest of all crawls whose limits count; so many other crawls take `turns` with the lane."""

    crawl: str
    by: Literal["rest", "rules", "cap", "pace", "turn"]
    interval: float = 0.0
    seconds: float = 0.0
    more: int = 0
    turns: int = 0


class LaneStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One lane as people see it. `starts_in` is seconds until it may start a task; `exits_rest`: because every exit of
    its pool is quarantined or parked; `waits_for_exit`: because no exit of its pool is due before that.

    `base_interval` is the pace to which an adaptive `interval` returns. An update rests it for `rests_for` more
    seconds. `why` it rests or goes slower than that pace, and `pace_why` that pace is not the crawl's, are as the
    updates said; empty: it does neither, or no reason was given. `held`: what other crawls do to it; None: nothing."""

    lane: str
    waiting: int
    in_flight: int
    interval: float
    cap: int
    starts_in: float = 0.0
    known: int = 0
    has_rules: bool = False
    exits_rest: bool = False
    base_interval: float = 0.0
    waits_for_exit: bool = False
    rests_for: float = 0.0
    why: str = ""
    pace_why: str = ""
    held: Held | None = None


class ExitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One exit towards one host. It is quarantined for `rests_for` more seconds, and parked, for every host, for
    `parked_for`. With neither, it is healthy if its failure `streak` is 0, else on probation."""

    exit: str
    lane: str
    requests: int = 0
    ok: int = 0
    blocked: int = 0
    failed: int = 0
    in_flight: int = 0
    size: int = 0
    elapsed: float = 0.0
    cost: float = 0.0
    streak: int = 0
    rests_for: float = 0.0
    parked_for: float = 0.0


class TaskState(enum.StrEnum):
    UNKNOWN = "unknown"
    QUEUED = "queued"
    DELAYED = "delayed"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


class TaskStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the frontier knows about one key. `losses`: leases in a row that were lost with their workers, of a task
    that waits or is leased; more if its handler ran when a worker died."""

    state: TaskState
    task: Task | None = None
    attempts: int = 0
    reason: str = ""
    detail: str = ""
    worker: str = ""
    due_in: float = 0.0
    losses: int = 0


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A task that was given up, whole, with the reason."""

    task: Task
    reason: str
    detail: str
    attempts: int
    at: float


class DeadFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the dead letters that match every field given."""

    lane: str | None = None
    reason: str | None = None  # a prefix
    since: float | None = None
    key: int | None = None
    until: float | None = None  # given up at that time or before


class DeadCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many dead letters match a filter. `is_least`: there are more letters than were looked at."""

    matching: int
    is_least: bool = False


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has done for a crawl so far and what it cost: totals since its start.

    `fetches` are requests that ended, with an answer or a fault. `fetch_times` counts them by how long they took, by
    FETCH_BUCKETS, not cumulative; `body_seconds` is the part of their time in which bodies came. `statuses` counts them
    by class: "2xx", "3xx", "4xx", "5xx", "fault". `settles` and `writes` are calls of `frontier.settle` and
    `store.write`, `lease_calls` those of `frontier.lease`; their seconds are from call to answer. `cpu_seconds` is of
    the whole process; `parse_cpu`, `handler_cpu` and `store_cpu` are estimates of parts of it, the rest is fetching and
    shoal. `waiting_for_slots`: seconds in which all slots were taken. `page_requests` are those that rendered pages
    made themselves, `page_refused` the connections for them that the guard refused."""

    fetches: int = 0
    fetch_seconds: float = 0.0
    fetch_times: tuple[int, ...] = ()
    body_seconds: float = 0.0
    received_bytes: int = 0
    statuses: dict[str, int] = msgspec.field(default_factory=dict)
    lease_calls: int = 0
    lease_seconds: float = 0.0
    settles: int = 0
    settle_seconds: float = 0.0
    writes: int = 0
    write_seconds: float = 0.0
    cpu_seconds: float = 0.0
    parse_cpu: float = 0.0
    handler_cpu: float = 0.0
    store_cpu: float = 0.0
    waiting_for_slots: float = 0.0
    page_requests: int = 0
    page_refused: int = 0


class WorkerBeat(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's sign of life. `machine` is where its `pid` is valid.

    `troubles` says what hinders the worker now, a line each. `load` is the share of a core that its process needed
    lately: used it, or waited for its turn. `left` is when the worker ended its work on the crawl in good order, 0
    before that. `most` is how many requests it had on their way at once since its last sign. `figures` are those of
    its work on this crawl, `cores` those that its machine lets it use, 0 where that is not known. `kinds` are those of
    the tasks that it does. `code` is the digest of the spider's code that it has loaded, empty where that is not
    known. `offers`: how many exits of its machine it offers, by POOL@MACHINE."""

    worker: str
    crawl: str
    host: str
    pid: int
    version: str
    slots: int
    busy: int = 0
    pages: int = 0
    pages_per_second: float = 0.0
    memory_bytes: int = 0
    started: float = 0.0
    seen: float = 0.0
    machine: str = ""
    troubles: tuple[str, ...] = ()
    load: float = 0.0
    left: float = 0.0
    most: int = 0
    figures: Figures = msgspec.field(default_factory=Figures)
    cores: int = 0
    kinds: tuple[str, ...] = (HTTP,)
    code: str = ""
    offers: dict[str, int] = msgspec.field(default_factory=dict)


class Duty(NamedTuple):
    """What `hold_duty` gives: whether the holder has the duty, what its holders have noted, and the number of the term,
    which rises whenever the duty comes to another holder."""

    is_ours: bool
    notes: bytes
    term: int


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A crawl at one moment of its history. Counts are totals so far: the difference of two points is what happened
    between them.

    `at`, in seconds since 1970, is set by the frontier. `outcomes` are the commonest ones, the rest counts as "other".
    `fetch_times` and `received_bytes` are summed over the latest workers of the crawl, `workers` counts those at
    work."""

    at: float = 0.0
    queued: int
    delayed: int
    leased: int
    done: int
    dead: int
    retried: int
    lost: int
    outcomes: dict[str, int]
    fetch_times: tuple[int, ...]
    received_bytes: int
    workers: int
    cost: float


def random_key() -> int:
    """A key that no URL has, for a task that must not be merged with any other."""
    return random.SystemRandom().getrandbits(64) - 2**63
