"""The contract of frontiers: the only authority on the work that is left.

Mechanism, not policy: a frontier knows lanes, exits and times, but neither robots.txt nor status 429. Every method is
one atomic step (`settle`: one per result) and safe to repeat after a lost reply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from shoal.frontier.rules.constants import MOST_COUNTED
from shoal.model import (
    DIRECT,
    HTTP,
    Crawl,
    CrawlSize,
    CrawlState,
    DeadCount,
    DeadFilter,
    DeadLetter,
    Duty,
    ExitStatus,
    Heartbeat,
    LaneStatus,
    LaneUpdate,
    Lease,
    LeaseBatch,
    Point,
    Pool,
    Progress,
    PutReport,
    Result,
    SettleReport,
    Task,
    TaskStatus,
)


class Frontier(Protocol):
    """The store of a crawl's tasks. Times passed in and out are seconds from now, never clock times."""

    async def open_crawl(self, crawl: Crawl) -> Crawl:
        """Create the crawl. If the id exists, that crawl takes over settings, budgets, limits, rules and pace, and its
        lanes that have the crawl's pace get the new one. It keeps state, tasks, counters, `dedup` and whether its keys
        expire: only the length of a `dedup_ttl` may change."""

    async def crawls(self) -> list[Crawl]:
        """All crawls, newest first."""

    async def set_state(self, crawl: str, state: CrawlState, *, reason: str = "") -> None:
        """Pause, resume, cancel or stop. Holds from the next lease on; settles still work. `reason` is shown to people.

        Cancelling turns queued and delayed tasks into cancelled ones; resuming turns them back. A stopped crawl has
        ended and keeps its tasks as they are. A finished crawl stays finished. Pausing a paused crawl, or stopping a
        stopped one, does not change its reason."""

    async def set_feeding(self, crawl: str, feeder: str, *, seconds: float, makes_up: float | None = None) -> None:
        """Register this feeder for `seconds`; 0: it has fed everything. While a feeder is registered, the crawl does
        not finish, even with no task left; a finished crawl runs again.

        A feeder that expires without the call with 0 is counted as lost. `makes_up=S`: this feeder redoes the work of
        feeders that have expired or will within S seconds: they are neither waited for nor counted.

        A feeder whose name begins with STAYER only keeps the crawl open for tasks from outside. When it expires, it is
        not counted as lost."""

    async def delete_crawl(self, crawl: str, *, seconds: float = math.inf) -> bool:
        """Delete a crawl with its keys, lanes, dead letters and history, in bounded steps between which other processes
        work. No other method sees the crawl after the first step. Gives False when `seconds` are over before the end:
        call again; each call does at least one step. Gives True when the crawl is gone, or was unknown.

        If the process dies, the crawl is half deleted: `half_deleted` names it, the next call continues, and opening a
        crawl of this name first deletes the rest."""

    async def half_deleted(self) -> list[str]:
        """The crawls whose deletion has begun and not ended."""

    async def size(self, crawl: str) -> CrawlSize:
        """An estimate of the bytes that the crawl takes in the frontier, in bounded time."""

    async def drop_keys(self, crawl: str, *, seconds: float = math.inf) -> bool:
        """Forget the keys of a finished crawl, in bounded steps like `delete_crawl`. Its record, counters, dead letters
        and history stay. From the first step on, calls that need the keys are refused for good: put, bury, know,
        requeue_dead and set_feeding would fetch finished URLs again. A crawl that is not finished is refused."""

    async def put(
        self,
        crawl: str,
        tasks: Sequence[Task],
        *,
        rejected: Mapping[str, int] | None = None,
        samples: Sequence[tuple[str, str]] = (),
    ) -> PutReport:
        """Store each task whose key is not known in this crawl and that fits the budgets.

        A key is known for ever from its put on; in a crawl with a `dedup_ttl`, for at least that long after its task
        has ended and at most one and a half times as long. The epoch rises when keys expire. A key refused by a budget
        stays unknown, so that a raised budget accepts it later. A crawl has at most MAX_KINDS kinds of tasks, `http`
        included; tasks of further kinds are refused. A put into a finished crawl sets it running again. `rejected` and
        `samples` are counted like those of a settle.

        A duplicate with `hastens` makes the next visit of its task due now, if the task waits for a visit after
        `Done(again=…)`; the task stays the same and counts as delayed until it is leased. Tasks that are queued,
        leased, cancelled, dead, done, or delayed for another reason are not changed. The same holds for found tasks."""

    async def bury(self, crawl: str, letters: Sequence[tuple[Task, str]]) -> PutReport:
        """Store each task as a dead letter with its reason, such as an entry from outside that is no valid task.

        Keys and budgets count as for a put. A finished crawl stays finished."""

    async def know(self, crawl: str, keys: Sequence[int]) -> int:
        """Mark keys as known without a task, such as pages that another crawler has fetched; gives how many were new.
        A put of a known key is a duplicate, `look_up` reports it as done, `forget` makes it unknown.

        Only the note KNOWN_KEYS counts these keys: no counter of tasks and no budget does. Keys known before are not
        changed. In a crawl with a `dedup_ttl`, the time of a new key begins now. A finished crawl stays finished. One
        step per bounded number of keys: repeat a call that failed."""

    async def know_from(self, crawl: str, earlier: str) -> int:
        """Copy the keys that the crawl `earlier` has done into this one, as `know` does; gives how many were new. Keys
        of its queued, delayed, leased, cancelled and dead tasks are left out. In bounded steps; may be repeated. An
        earlier crawl that cannot list its keys is refused: they were dropped, or are in a Bloom filter."""

    async def lease(
        self,
        crawls: Sequence[str],
        limit: int,
        *,
        worker: str,
        seconds: float,
        horizon: float,
        landed: Sequence[Lease] = (),
        kinds: Sequence[str] = (HTTP,),
        offers: Sequence[Pool] = (),
        room: int = 0,
    ) -> LeaseBatch:
        """Lease up to `limit` tasks of lanes that may start within `horizon`: the lane that has waited longest first,
        inside a lane by priority, then age. Expired leases are reclaimed first. An attempt counts from its lease on; it
        is given back when the lease is lost (expired or evicted), unless it was leased `alone`.

        A task whose last SUSPECT_LOSSES leases were lost is a suspect. It is leased alone: as the only lease of a call
        in which its lane has waited longest. In any other call, its lane stops before it.

        A lane that needs rules and has none gets one lease with `opens_lane`, and no other before that lease ends.
        `finished` names the crawls of this call that have nothing left to do.

        A lane "via" a pool leases only as its exits allow; each lease names its exit. A crawl whose cost has reached
        its budget is paused. A running crawl that has reached one of its `limits`, and has work left or is kept open by
        a STAYER, is stopped for that reason before anything is leased: results settled earlier count. A stopped crawl
        is in `finished` as soon as none of its tasks is leased.

        `landed`: leases of these crawls whose requests were answered; they no longer count in the caps of their lanes.
        Until they are settled the leases stand, their exits stay in use, and a lane that one of them opens stays
        closed. Leases that are lost, or were named before, are ignored.

        `kinds`: only tasks of these kinds are leased, as if there were no others; `ask_again` is for these kinds. Pace,
        cap, rests, rules and exits of a lane hold for its tasks of all kinds. `finished` crawls have no task of any
        kind left.

        `offers`: exits that this worker has and others may lack, by pool. An offered exit belongs to its pool until
        nobody has offered it for OFFER_SECONDS. Only calls that offer it get leases through it. A lane whose due exits
        all belong to other workers leases nothing and queues up again from now. A pool whose name begins with REGION
        exists while somebody offers it, with the limits of the first offer and the crawl's pace towards a host; offers
        to other pools that the crawl does not have are ignored.

        `room`: how many leases the worker has room for, if it asks for fewer and leaves the rest to other workers. Its
        crawl then still wants start slots of shared hosts, though it got all that it asked for."""

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        """Renew the leases for `seconds` from now; gives those that were lost."""

    async def settle(self, results: Sequence[Result]) -> SettleReport:
        """End leases. One atomic step per result: fence, state, found tasks, counters and the lane's update.

        A task that is handed over keeps its key and age and has all its attempts again; no budget counts it, and it
        does not count as retried.

        A result whose lease was lost changes nothing and is reported as stale. A result that cannot be stored is
        reported as failed; its lease stands, and the other results are applied."""

    async def evict(
        self, worker: str, *, suspects: Sequence[int] = (), cause: str = "", known: Sequence[int] | None = None
    ) -> int:
        """End the leases of a worker that has exited, as if they had expired; gives how many.

        `suspects`: tokens of the leases whose handlers ran when it died. Their tasks become suspects, and a lease given
        `alone` that is not among them gets its attempt back (`NO_LEASE`: no lease is blamed). Empty: not known.
        `cause`, such as "SIGSEGV", is kept for the dead letter, whose reason is "worker lost: CAUSE".

        `known`: the worker is alive and has the leases with these tokens, which stand. Its other leases were in an
        answer that it never received: they end as if it had released them.

        A token is unique in a crawl only, and ends leases in every crawl: give tokens only for a worker that leases
        from one crawl."""

    async def forget(self, crawl: str, keys: Sequence[int]) -> None:
        """Make these keys unknown; dead letters among them are dropped. Waiting and leased tasks do not change."""

    async def progress(self, crawl: str) -> Progress:
        """Exact counts, read in one step."""

    async def lanes(self, crawl: str, *, limit: int = 100, skip: int = 0, search: str = "") -> list[LaneStatus]:
        """Lanes with waiting tasks or requests in flight, most waiting first. Requests that have landed (see `lease`)
        are not in flight. `skip`: how many of the first lanes to leave out. `search`: only lanes whose name contains
        this text, in the same case."""

    async def update_lane(self, crawl: str, lane: str, update: LaneUpdate) -> None:
        """Change a lane's pace, rest it, or set its rules; creates the lane if needed."""

    async def rules(self, crawl: str, lane: str) -> tuple[int, bytes]:
        """The version of the lane's rules, and the rules; version 0: it has no valid ones."""

    async def reserve(self, crawl: str, lane: str, *, exit: str = DIRECT, missed: float = 0.0) -> float:  # noqa: A002 -- the word for it
        """Take the next start slot of the lane, and of the exit if there is one; gives the seconds to wait. For a
        request that is not a lease's first, or that has `missed` its slot by so many seconds: then the lane's latest
        slot is moved, not left empty. Below zero: the slot was over when the answer arrived."""

    async def exits(self, crawl: str, *, limit: int = 1000) -> list[ExitStatus]:
        """Every exit towards every host it was used for, sorted by name."""

    async def session(self, crawl: str, exit: str) -> tuple[int, bytes]:  # noqa: A002 -- the word for it
        """The version and the content of the session kept for an exit, such as an account's cookies. Version 0: none is
        kept."""

    async def keep_session(self, crawl: str, name: str, session: bytes, *, version: int) -> tuple[int, bytes]:
        """Keep a session that no lease reports, such as the cookies of a site, if the version under this name is still
        `version`; gives the version and the session that are kept now. A new name is refused, with version 0, when the
        crawl has `MAX_KEPT_SESSIONS` already."""

    async def dead(self, crawl: str, which: DeadFilter, *, limit: int = 100) -> list[DeadLetter]:
        """Dead letters that match, newest first."""

    async def count_dead(self, crawl: str, which: DeadFilter, *, most: int = MOST_COUNTED) -> DeadCount:
        """How many dead letters match, in bounded time: examines the newest `most` letters in the filter's time span,
        in each shard."""

    async def requeue_dead(self, crawl: str, which: DeadFilter, *, limit: int = 1000) -> int:
        """Queue up to `limit` matching dead letters again, with all their attempts; gives how many. Zero: none left.
        Tasks that were lost with their worker are leased alone. Tasks that allow no attempt (`max_attempts` 0) stay
        dead letters."""

    async def drop_dead(self, crawl: str, which: DeadFilter, *, limit: int = 1000) -> int:
        """Delete up to `limit` matching dead letters; gives how many. Their keys stay known, as done."""

    async def look_up(self, crawl: str, key: int) -> TaskStatus:
        """The state of one key, and its task unless the task is done."""

    async def tasks_of(self, crawl: str, url: str, *, lanes: Sequence[str]) -> list[TaskStatus]:
        """The tasks of these lanes with exactly this URL that are not done, as `look_up` gives them, in any order.

        There may be several, with other methods, bodies, keys or pools. Slow: reads all tasks of these lanes, and all
        that are delayed, leased or dead. For people, not for crawls."""

    async def samples(self, crawl: str, reason: str) -> list[str]:
        """A few of the URLs that were rejected or merged for this reason."""

    async def beat(self, beat: Heartbeat) -> None:
        """Store a worker's heartbeat; `left` in its last one tells when it left."""

    async def workers(self, *, within: float = 60.0) -> list[Heartbeat]:
        """The latest heartbeats of workers that sent one within these seconds and have not left."""

    async def workers_of(self, crawl: str) -> list[Heartbeat]:
        """The last heartbeats of a crawl's latest 200 workers, newest first, also of workers that left or were lost;
        kept for 90 days."""

    async def keep_point(self, crawl: str, point: Point) -> bool:
        """Add a point to the crawl's history; its `at` is set by the frontier. The latest of every 10 s is kept for a
        day, the latest of every 5 min for 31 days. False: it replaced a point of the same 10 s."""

    async def points(self, crawl: str, *, seconds: float, most: int = 500) -> list[Point]:
        """The history of the last `seconds`, oldest first. Of more than `most` points: divides the time into `most`
        equal parts and gives the latest point of each. Points of another version that cannot be read are left out."""

    async def hold_duty(
        self, duty: str, holder: str, *, seconds: float, notes: bytes | None = None, term: int | None = None
    ) -> Duty:
        """Take or keep a duty of the whole frontier, such as sending alerts, for `seconds` from now; `notes` replaces
        the duty's notes. If another holder has the duty, nothing changes.

        `term`: take or keep it only if the duty's term is still this one. A process that was frozen for longer than it
        held the duty gives the term in which it read the notes: if another holder came meanwhile, it takes and
        overwrites nothing, even if the duty is free again. 0 seconds: the holder gives the duty up, its notes stay; any
        other caller only reads."""

    async def close(self) -> None:
        """Close the connections. Leases stay until they expire."""
