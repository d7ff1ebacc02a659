"""The frontier's contract: the only authority on the work that is left.

Mechanism, not policy: a frontier knows lanes, exits and times. It has never heard of robots.txt or of status 429.
Every method is one atomic step (`settle`: one per result) and safe to repeat after a lost reply.
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
    WorkerBeat,
)


class Frontier(Protocol):
    """Where tasks live. Times passed in and out are seconds from now, never clock times."""

    async def open_crawl(self, crawl: Crawl) -> Crawl:
        """Create the crawl. If a crawl has this id already, it takes over settings, budgets, limits, rules and pace,
        and lanes whose pace was the crawl's own follow it. Its state, tasks and counters stay, and so do `dedup` and
        whether keys expire: only the length of a `dedup_ttl` may change."""

    async def crawls(self) -> list[Crawl]:
        """All crawls, newest first."""

    async def set_state(self, crawl: str, state: CrawlState, *, reason: str = "") -> None:
        """Pause, resume, cancel or stop. Holds from the next lease on; settles still work. `reason` is for people to
        read.

        Cancelling turns queued and delayed tasks into cancelled ones; resuming turns them back. A stopped crawl has
        ended, and keeps its tasks as they are. A finished crawl stays finished, and a paused or stopped crawl keeps the
        reason it was paused or stopped for."""

    async def set_feeding(self, crawl: str, feeder: str, *, seconds: float, makes_up: float | None = None) -> None:
        """This feeder feeds the crawl for `seconds` more; 0: it has fed everything. While any feeder's time is not
        over, the crawl is not finished, however empty it looks; a finished one runs again.

        A feeder whose time is over without that 0 is lost, and counted. `makes_up`: this one feeds again what others
        have left out, so those whose time is over within so many seconds are neither waited for nor counted.

        A feeder whose name begins with STAYER feeds nothing of its own: it keeps the crawl open for what comes from
        outside, and is forgotten when its time is over."""

    async def delete_crawl(self, crawl: str, *, seconds: float = math.inf) -> bool:
        """Remove a crawl with all its keys, lanes, letters and its history, in bounded steps between which other
        processes work. From the first one on, no other verb sees the crawl. False: `seconds` are over and more is left;
        call again. One step is made in any case. True: it is gone, or there was none.

        A process that dies meanwhile leaves the crawl half deleted: `half_deleted` names it, the next call goes on, and
        a new crawl of its name first removes the rest."""

    async def half_deleted(self) -> list[str]:
        """The crawls whose deletion has begun and is not at its end."""

    async def size(self, crawl: str) -> CrawlSize:
        """About how many bytes the crawl takes in the frontier, in bounded time, however large it is."""

    async def drop_keys(self, crawl: str, *, seconds: float = math.inf) -> bool:
        """Forget which URLs a finished crawl knows, in bounded steps as `delete_crawl`. Its record, counters, dead
        letters and history stay. From the first step on a change that needs the keys is refused, for good: put, bury,
        know, requeue_dead and set_feeding would fetch again what was done. A crawl that is not finished is refused."""

    async def put(
        self,
        crawl: str,
        tasks: Sequence[Task],
        *,
        rejected: Mapping[str, int] | None = None,
        samples: Sequence[tuple[str, str]] = (),
    ) -> PutReport:
        """Store each task whose key is not known in this crawl and that fits the budgets.

        A key is known from its put on, for ever; where the crawl has a `dedup_ttl`, for at least that long after
        its task ended and at most one and a half times as long. The epoch rises when keys expire.
        A budget's refusal leaves the key unknown, so that a raised budget lets it in later. A crawl has at most
        MAX_KINDS kinds of tasks, `http` among them: those of any other are refused, too. A put into a finished crawl
        sets it running again. `rejected` and `samples` are counted like those of a settle.

        A duplicate that `hastens` makes the next visit of its task due now, if the task waits for one since
        `Done(again=…)`: it stays the same task and counts as delayed until it is lent. Tasks that are queued, leased,
        cancelled, dead or done, or delayed for another reason, stay as they are. The same holds for found tasks."""

    async def bury(self, crawl: str, letters: Sequence[tuple[Task, str]]) -> PutReport:
        """Store each task as a dead letter with its reason, without a worker: an entry from outside that is no task.

        Keys and budgets count as for a put. The state of the crawl stays: a finished one is not set running."""

    async def know(self, crawl: str, keys: Sequence[int]) -> int:
        """Mark keys as known without a task, such as those of pages that another crawler has fetched; gives how many
        were new. A put of such a key is a duplicate, `look_up` says that it is done, `forget` lets it be put.

        These were never tasks of this crawl: no counter of tasks and no budget counts them, the note KNOWN_KEYS does.
        Keys that are known already stay as they are. Where keys expire, the time of a new one begins now. The state of
        the crawl stays. One step per bounded number of keys: repeat a call that failed."""

    async def know_from(self, crawl: str, earlier: str) -> int:
        """Mark the keys that another crawl has done as known in this one, as `know` does; gives how many were new. Keys
        of tasks of the other crawl that wait, are leased, cancelled or dead are left out. In bounded steps; repeating
        it is harmless. Another crawl that cannot list its keys is refused: they were dropped, or are in a Bloom
        filter."""

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
        """Lend up to `limit` tasks whose lanes may start within `horizon`, longest-waiting lane first,
        inside a lane by priority, then age. Expired leases are reclaimed first. An attempt counts from its lease; it
        is given back when the lease is lost with its worker, expired or evicted, unless it was lent `alone`.

        A task whose last SUSPECT_LOSSES leases were lost is a suspect. It is lent alone: when its lane is the one that
        waits longest, as the only lease of the call. Met later in a call, its lane stops before it.

        A lane that needs rules and has none lends one lease with `opens_lane`, and nothing more before that
        lease ends. `finished` names the crawls of this call that have nothing left to do.

        A lane that goes "via" a pool lends only as its exits allow; each lease names the exit to use. A crawl whose
        cost has reached its budget is paused. A running crawl that has work left, or that a STAYER keeps open, and has
        reached one of its `limits` is stopped for that reason, before anything is lent: results that were settled
        before count. A stopped crawl is among `finished` as soon as nothing is leased.

        `landed` are leases of these crawls whose requests were answered: from this call on they no longer count in
        the caps of their lanes. The leases stand, their exits stay in use and an opening lane stays closed until they
        are settled. Leases that are lost, or were named before, are ignored.

        `kinds`: only tasks of these kinds are lent, as if the others were not there; `ask_again` counts for these
        kinds. Everything else about a lane counts for all its tasks, of whatever kind: pace, cap, rests, rules, exits.
        `finished` crawls have no task of any kind left.

        `offers`: the exits that this worker has and others may lack, by pool. They are in the pool from this call on,
        until nobody has offered them for OFFER_SECONDS. Only calls that offer an exit get leases through it. A lane
        whose exits that are due are all of other workers lends nothing, waits anew from now, and is asked for again
        after a moment. A pool whose name begins with REGION is there when somebody offers it, with the limits of the
        first offer and the crawl's pace towards a host; offers to another pool that the crawl does not have are
        ignored.

        `room`: for how many leases the worker has room, if it asks for fewer and leaves the rest to other workers. Its
        crawl then wants more start slots of the hosts that it shares with other crawls, though it got all it asked
        for."""

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        """Keep the leases for `seconds` from now; gives the leases that are lost already."""

    async def settle(self, results: Sequence[Result]) -> SettleReport:
        """End leases. One atomic step per result: fence, state, found tasks, counters and the lane's update.

        A task that was handed over waits as its new self, with its key, its age and all its attempts; it counts
        neither in a budget nor as retried.

        A result whose lease was lost changes nothing and is reported as stale. One that cannot be stored is
        reported as failed; its lease stands and the others are applied."""

    async def evict(
        self, worker: str, *, suspects: Sequence[int] = (), cause: str = "", known: Sequence[int] | None = None
    ) -> int:
        """End the leases of a worker that is known to have exited, as if they had expired; gives how many.

        `suspects` are the tokens of the leases whose handlers ran when it died: their tasks are suspects from now on,
        and a lease lent `alone` that is not among them gets its attempt back (`NO_LEASE`: none is blamed). No suspects:
        nobody knows. `cause`, such as "SIGSEGV", is kept for the dead letter, whose reason is "worker lost: CAUSE".

        `known`: the worker lives, and these are the tokens of the leases that it knows of, which stand. The others were
        lent to it in an answer that it never got: they end as if it had released them.

        No two leases of a crawl have the same token, but leases of different crawls may. So give tokens only for a
        worker that leases from one crawl: a token stands for a lease in every crawl that has it."""

    async def forget(self, crawl: str, keys: Sequence[int]) -> None:
        """Let these keys be put again; dead letters among them are dropped. Waiting and leased tasks are not
        touched."""

    async def progress(self, crawl: str) -> Progress:
        """Exact counts, read in one step."""

    async def lanes(self, crawl: str, *, limit: int = 100, skip: int = 0, search: str = "") -> list[LaneStatus]:
        """Lanes with waiting tasks or requests in flight, most waiting first. Requests that have landed (see `lease`)
        are not in flight. `skip` leaves out so many of the first ones. `search`: only lanes that have this text in
        their name, as it is written."""

    async def update_lane(self, crawl: str, lane: str, update: LaneUpdate) -> None:
        """Change a lane's pace, rest it, or give it rules; creates the lane if need be."""

    async def rules(self, crawl: str, lane: str) -> tuple[int, bytes]:
        """The version of the lane's rules, and the rules; version 0 when it has none that are still valid."""

    async def reserve(self, crawl: str, lane: str, *, exit: str = DIRECT, missed: float = 0.0) -> float:  # noqa: A002 -- the word for it
        """Take the next start slot of the lane, and of the exit if there is one, for a request that is not a lease's
        first, or that has `missed` its slot by so many seconds: the lane's latest slot is then moved, not left empty.
        Gives the seconds to wait. Below zero: the answer came so late that the slot is over."""

    async def exits(self, crawl: str, *, limit: int = 1000) -> list[ExitStatus]:
        """Every exit towards every host it was used for, sorted by name."""

    async def session(self, crawl: str, exit: str) -> tuple[int, bytes]:  # noqa: A002 -- the word for it
        """The version of the session kept for an exit, and the session, such as an account's cookies. Version 0: there
        is none."""

    async def keep_session(self, crawl: str, name: str, session: bytes, *, version: int) -> tuple[int, bytes]:
        """Keep a session that no lease reports, such as the cookies of a site, if the version under this name is still
        `version`; gives the version and the session that are kept now. A new name is refused, with version 0, when the
        crawl has `MAX_KEPT_SESSIONS` already."""

    async def dead(self, crawl: str, which: DeadFilter, *, limit: int = 100) -> list[DeadLetter]:
        """Dead letters that match, newest first."""

    async def count_dead(self, crawl: str, which: DeadFilter, *, most: int = MOST_COUNTED) -> DeadCount:
        """How many dead letters match. Looks at the newest `most` letters of the time that the filter names, of each
        shard where there are several: in bounded time, however many there are."""

    async def requeue_dead(self, crawl: str, which: DeadFilter, *, limit: int = 1000) -> int:
        """Queue up to `limit` matching dead letters again, with all their attempts; gives how many. Zero: none left.
        Those that were lost with their worker are lent alone.

        Tasks that allow no attempt (`max_attempts` 0) stay dead letters."""

    async def drop_dead(self, crawl: str, which: DeadFilter, *, limit: int = 1000) -> int:
        """Forget up to `limit` matching dead letters for good (their keys stay known, as done)."""

    async def look_up(self, crawl: str, key: int) -> TaskStatus:
        """The state of one key, and its task unless that is done."""

    async def tasks_of(self, crawl: str, url: str, *, lanes: Sequence[str]) -> list[TaskStatus]:
        """The tasks of these lanes with exactly this URL that are not done, as `look_up` gives them, in any order.

        There may be several, with other methods, bodies, keys or pools. Looks through all tasks of these lanes, and all
        that are delayed, leased or dead: for people, not for crawls."""

    async def samples(self, crawl: str, reason: str) -> list[str]:
        """A few of the URLs that were rejected or merged for this reason."""

    async def beat(self, beat: WorkerBeat) -> None:
        """Store a worker's sign of life: its last one tells when it left."""

    async def workers(self, *, within: float = 60.0) -> list[WorkerBeat]:
        """Workers that gave a sign of life within the last seconds and have not left."""

    async def workers_of(self, crawl: str) -> list[WorkerBeat]:
        """The last signs of life of a crawl's latest 200 workers, newest first: also of those that left or were lost,
        for 90 days."""

    async def keep_point(self, crawl: str, point: Point) -> bool:
        """Add a point to the crawl's history; its `at` is set by the frontier. The latest of every 10 s is kept for a
        day, the latest of every 5 min for 31 days. False: it took the place of one of the same 10 s."""

    async def points(self, crawl: str, *, seconds: float, most: int = 500) -> list[Point]:
        """The history of the last `seconds`, oldest first. Of more than `most` points, the latest of each of so many
        equal parts of the time. Points that another version wrote and this one cannot read are left out."""

    async def hold_duty(
        self, duty: str, holder: str, *, seconds: float, notes: bytes | None = None, term: int | None = None
    ) -> Duty:
        """Take or keep a duty of the whole frontier, such as sending alerts, for `seconds` from now; `notes` replaces
        what its holders have noted so far. If another holder has it, nothing changes.

        `term`: only as long as no other holder has taken it since that term. A process that stood still for longer
        than its duty lasted gives the term in which it read the notes: it takes and overwrites nothing, also if the
        duty is free again. 0 seconds: give it up, the notes stay; who does not have it only looks."""

    async def close(self) -> None:
        """Close the connections. Leases stay until they expire."""
