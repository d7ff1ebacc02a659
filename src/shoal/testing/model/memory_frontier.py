"""The frontier's contract in its plainest form: the model that real frontiers are compared with.

It keeps everything in dicts and looks through all of them at every call. It is for tests, not for crawls.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from shoal.errors import UsageError
from shoal.frontier.clock import SteadyTimes
from shoal.frontier.rules.constants import (
    BUSY_SECONDS,
    EPOCHS_PER_CRAWL,
    MAX_ASK_AGAIN,
    MOST_COUNTED,
    WORKERS_KEPT,
    WORKERS_KEPT_SECONDS,
)
from shoal.frontier.rules.duties import DutyCall
from shoal.frontier.rules.exits import check_exits
from shoal.frontier.rules.hosts import Limits
from shoal.frontier.rules.keys import DROPPED, no_keys_to_know
from shoal.frontier.rules.tasks import TOO_MANY_KINDS, losses_of_requeued, outcome_of
from shoal.model import (
    DIRECT,
    HTTP,
    Crawl,
    CrawlSize,
    CrawlState,
    DeadCount,
    DeadFilter,
    DeadLetter,
    Done,
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
    TaskState,
    TaskStatus,
    WorkerBeat,
)
from shoal.testing.model import memory_views as views
from shoal.testing.model.memory_control import apply, described, flaw_of, lacks_room, matching_dead, take_over
from shoal.testing.model.memory_crawl import ModelCrawl, ModelLane, ModelTask
from shoal.testing.model.memory_history import ModelDuty
from shoal.testing.model.memory_hosts import ModelHosts, reclaim_from
from shoal.testing.model.memory_lease import (
    Terms,
    ask_again,
    bring_back,
    choose,
    finish,
    lend,
    note_wish,
    pause_if_spent,
    reclaim_and_wake,
    shares,
    stop_if_reached,
)
from shoal.testing.model.memory_put import admit, lane_of


class MemoryFrontier:
    """Keeps the contract of `Frontier` in memory."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
        steady: Callable[[], float] | None = None,
        shared: MemoryFrontier | None = None,
    ) -> None:
        """`shared`: the frontier of another process, whose state this one sees and changes too."""
        self._clock = clock
        self._times = SteadyTimes(steady)
        self._monotonic = monotonic
        self._hosts: ModelHosts = shared._hosts if shared else ModelHosts()
        self._crawls = self._hosts.crawls
        self._crawl_ages: Iterator[int] = shared._crawl_ages if shared else itertools.count(1)
        self._lane_ages: Iterator[int] = shared._lane_ages if shared else itertools.count(1)
        self._beats: dict[str, WorkerBeat] = shared._beats if shared else {}
        self._duties: dict[str, ModelDuty] = shared._duties if shared else {}

    async def open_crawl(self, crawl: Crawl) -> Crawl:
        check_exits(crawl.pools)
        now = self._clock()
        if crawl.id in self._crawls:
            take_over(self._crawl(crawl.id), crawl)
        else:
            age = next(self._crawl_ages)
            crawl = msgspec.structs.replace(crawl, created=crawl.created or now)
            one = ModelCrawl(crawl, age, age * EPOCHS_PER_CRAWL, now, self._lane_ages)
            one.state, one.feeding = crawl.state, crawl.feeding
            one.generation_began = now
            one.pools.take_over(crawl.pools, now)
            one.pools.is_held_elsewhere = partial(self._hosts.is_held, one)
            one.learnt_of = partial(self._hosts.learnt, one)
            self._crawls[crawl.id] = one
        return described(self._crawls[crawl.id])

    async def crawls(self) -> list[Crawl]:
        newest_first = sorted(self._crawls.values(), key=lambda one: (one.crawl.created, one.age), reverse=True)
        return [described(one) for one in newest_first]

    async def set_state(self, crawl: str, state: CrawlState, *, reason: str = "") -> None:
        one = self._crawl(crawl)
        if state == CrawlState.FINISHED:
            raise UsageError("a crawl finishes by itself: pause, resume or cancel it")
        if one.state in (CrawlState.FINISHED, state):
            return
        before, one.state, one.reason, one.finished = one.state, state, reason, None
        if state == CrawlState.RUNNING:
            one.begin_to_run()
        if before == CrawlState.CANCELLED:
            for task in one.in_state(TaskState.CANCELLED):
                at = task.at
                one.wait(task, at - one.now)
                task.at = at
        if state in (CrawlState.CANCELLED, CrawlState.STOPPED):
            one.finished = one.wall
        if state == CrawlState.CANCELLED:
            for task in one.in_state(TaskState.QUEUED) + one.in_state(TaskState.DELAYED):
                task.state = TaskState.CANCELLED

    async def set_feeding(self, crawl: str, feeder: str, *, seconds: float, makes_up: float | None = None) -> None:
        if seconds > 0:
            self._crawl(crawl).check_keys()
        self._crawl(crawl).set_feeding(feeder, seconds, makes_up=makes_up)

    async def delete_crawl(self, crawl: str, *, seconds: float = math.inf) -> bool:
        if crawl in self._crawls:
            self._hosts.keep(self._look(crawl))
            del self._crawls[crawl]
        for name in [name for name, beat in self._beats.items() if beat.crawl == crawl]:
            del self._beats[name]
        return True

    async def half_deleted(self) -> list[str]:
        return []

    async def size(self, crawl: str) -> CrawlSize:
        one = self._look(crawl)
        packed = msgspec.msgpack.encode([task.task for task in one.tasks.values()])
        return CrawlSize(bytes=1 + len(packed) + 8 * len(one.seen))

    async def drop_keys(self, crawl: str, *, seconds: float = math.inf) -> bool:
        self._crawl(crawl).drop_keys()
        return True

    async def put(
        self,
        crawl: str,
        tasks: Sequence[Task],
        *,
        rejected: Mapping[str, int] | None = None,
        samples: Sequence[tuple[str, str]] = (),
    ) -> PutReport:
        one = self._crawl(crawl)
        msgspec.msgpack.encode(tasks)
        one.check_keys()
        one.expire_keys()
        one.reject(rejected or {}, samples)
        return admit(one, tasks)[0]

    async def bury(self, crawl: str, letters: Sequence[tuple[Task, str]]) -> PutReport:
        one = self._crawl(crawl)
        msgspec.msgpack.encode(letters)
        one.check_keys()
        one.expire_keys()
        return admit(one, [task for task, _ in letters], reasons=[reason for _, reason in letters])[0]

    async def know(self, crawl: str, keys: Sequence[int]) -> int:
        one = self._crawl(crawl)
        one.check_keys()
        one.expire_keys()
        return sum([one.know(key) for key in keys])

    async def know_from(self, crawl: str, earlier: str) -> int:
        other = self._look(earlier)
        if other.crawl.keys != "known":
            raise no_keys_to_know(earlier, DROPPED)
        return await self.know(crawl, [key for key in other.seen if other.knows(key) and key not in other.tasks])

    async def lease(  # noqa: PLR0913 -- as the contract has it
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
        check_exits(offers)
        terms = Terms(worker, seconds, horizon, kinds)
        asked = self._times.now()
        names = list(dict.fromkeys(crawls))
        ours = [self._crawl(name) for name in names if name in self._crawls]
        for lease in landed:
            if lease.crawl in names and (task := self._held(lease)) is not None:
                task.has_landed = True
        for one in ours:
            one.expire_keys()
            one.pools.offer(offers, one.now)
            if one.note_presence(seconds):
                bring_back(one)
            reclaim_and_wake(one)
            stop_if_reached(one)
            pause_if_spent(one)
        leases = self._lend(ours, limit, terms, room=max(room, limit))
        for one in ours:
            one.pools.refresh(one.now)
            self._times.note(one.crawl.id, one.now, asked=asked)
        was_passed_over = not leases and any(one.pools.passed_over for one in ours)
        again = min([ask_again(one, kinds) for one in ours], default=MAX_ASK_AGAIN)
        finished = [name for name in names if name not in self._crawls or finish(self._crawls[name])]
        return LeaseBatch(
            leases=sorted(leases, key=lambda lease: lease.wait),
            ask_again=max(again, BUSY_SECONDS) if was_passed_over else again,
            at=self._monotonic(),
            epoch=sum(one.epoch for one in ours),
            finished=tuple(finished),
        )

    def _lend(self, ours: Sequence[ModelCrawl], limit: int, terms: Terms, *, room: int) -> list[Lease]:
        names = {one.crawl.id for one in ours}

        def look(one: ModelCrawl, lane: ModelLane) -> Limits:
            for name in self._hosts.with_requests(one, lane):
                if name not in names:
                    names.add(name)
                    reclaim_from(self._crawl(name), seconds=terms.seconds)
            return self._hosts.look(one, lane)

        chosen, held = choose(ours, limit, terms, look=look)
        leases: list[Lease] = []
        counts = shares([grant.room(terms) for grant in chosen], limit)
        for index, (grant, count) in enumerate(zip(chosen, counts, strict=True)):
            if count:
                leases += lend(grant, count, terms, is_first=index == 0)
            if leases and leases[0].alone:
                break
        for grant in [*chosen, *held]:
            note_wish(grant, is_served=len(leases) >= room)
        return leases

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        for name in {lease.crawl for lease in leases} & self._crawls.keys():
            self._crawl(name).note_presence(seconds)
        lost = []
        for lease in leases:
            task = self._held(lease)
            if task is None:
                lost.append(lease)
            else:
                task.at = self._crawls[lease.crawl].now + seconds
        return lost

    async def settle(self, results: Sequence[Result]) -> SettleReport:
        failed = self._failures(results)
        good = [result for index, result in enumerate(results) if index not in failed]
        stale: list[Lease] = []
        refused: dict[int, str] = {}
        duplicates: list[tuple[int, int]] = []
        for group in [[result] for result in good] if failed else [good]:
            ended = [(result, self._end(result)) for result in group]
            applied = [result for result, in_time in ended if in_time]
            stale += [result.lease for result, in_time in ended if not in_time]
            for name in dict.fromkeys(result.lease.crawl for result in applied):
                one = self._crawl(name)
                one.pools.refresh(one.now)
                dones = [result for result in applied if isinstance(result, Done) and result.lease.crawl == name]
                found = [(done.lease.token, task) for done in dones for task in done.found]
                report, known = admit(one, [task for _, task in found])
                refused |= report.refused
                duplicates += [(found[index][0], found[index][1].key) for index in known]
        names = {result.lease.crawl for result in good} & self._crawls.keys()
        return SettleReport(
            stale=stale,
            refused=refused,
            epoch=sum(self._crawls[name].epoch for name in names),
            failed=failed,
            duplicates=duplicates,
        )

    async def evict(
        self, worker: str, *, suspects: Sequence[int] = (), cause: str = "", known: Sequence[int] | None = None
    ) -> int:
        held = [
            (one, task)
            for one in [self._crawl(name) for name in self._crawls]
            for task in one.in_state(TaskState.LEASED)
            if task.worker == worker and task.token not in (known or ())
        ]
        for one, task in held:
            if known is None:
                one.lose(task, suspects=suspects, cause=cause)
            else:
                one.end_lease(task)
                one.release(task)
        for one in self._crawls.values():
            one.pools.refresh(one.now)
        return len(held)

    async def forget(self, crawl: str, keys: Sequence[int]) -> None:
        one = self._crawl(crawl)
        for key in dict.fromkeys(keys):
            task = one.tasks.get(key)
            if task and task.state == TaskState.DEAD:
                one.drop(task)
            if key not in one.tasks:
                one.forget(key)
        one.epoch += 1

    async def progress(self, crawl: str) -> Progress:
        return views.progress(self._look(crawl))

    async def lanes(self, crawl: str, *, limit: int = 100, skip: int = 0, search: str = "") -> list[LaneStatus]:
        one = self._look(crawl)
        return views.lanes(one, held=partial(self._hosts.held, one), limit=limit, skip=skip, search=search)

    async def update_lane(self, crawl: str, lane: str, update: LaneUpdate) -> None:
        one = self._crawl(crawl)
        lane_of(one, lane).update(update, one.now)

    async def rules(self, crawl: str, lane: str) -> tuple[int, bytes]:
        one = self._look(crawl)
        found = one.lanes.get(lane)
        return (found.rules_version, found.rules) if found and found.rules_until > one.now else (0, b"")

    async def reserve(self, crawl: str, lane: str, *, exit: str = DIRECT, missed: float = 0.0) -> float:  # noqa: A002 -- as the contract has it
        one = self._crawl(crawl)
        found = lane_of(one, lane)
        limits = self._hosts.limits(one, found, has_missed=missed > 0)
        start = max(found.reserved_start(missed, one.now), limits.not_before)
        if found.has_pool:
            one.pools.others.clear()
            self._hosts.heed_exits(one, found)
            start = one.pools.reserve(lane, exit, start, missed=missed, now=one.now)
            one.pools.refresh(one.now)
        found.start(start, one.now, interval=limits.interval)
        if not missed and not one.is_apart(found):
            found.turn += 1.0 / one.weight
        return start - one.now

    async def exits(self, crawl: str, *, limit: int = 1000) -> list[ExitStatus]:
        one = self._look(crawl)
        return sorted(one.pools.statuses(one.now), key=lambda status: (status.exit, status.lane))[:limit]

    async def session(self, crawl: str, exit: str) -> tuple[int, bytes]:  # noqa: A002 -- as the contract has it
        found = self._look(crawl).pools.exits.get(exit)
        return found.session if found else (0, b"")

    async def keep_session(self, crawl: str, name: str, session: bytes, *, version: int) -> tuple[int, bytes]:
        return self._crawl(crawl).pools.keep_session(name, session, version=version)

    async def dead(self, crawl: str, which: DeadFilter, *, limit: int = 100) -> list[DeadLetter]:
        return [
            DeadLetter(task=task.task, reason=task.reason, detail=task.detail, attempts=task.attempts, at=task.at)
            for task in matching_dead(self._look(crawl), which)[:limit]
        ]

    async def count_dead(self, crawl: str, which: DeadFilter, *, most: int = MOST_COUNTED) -> DeadCount:
        looked_at = matching_dead(self._look(crawl), DeadFilter(since=which.since, until=which.until, key=which.key))
        matching = sum(task.matches(which) for task in looked_at[:most])
        return DeadCount(matching=matching, is_least=len(looked_at) > most)

    async def requeue_dead(self, crawl: str, which: DeadFilter, *, limit: int = 1000) -> int:
        one = self._crawl(crawl)
        letters = [task for task in matching_dead(one, which) if task.task.max_attempts > 0][:limit]
        if letters:
            one.check_keys()
        for task in letters:
            one.revive()
            one.outcomes[outcome_of(task.reason)] -= 1
            task.attempts = task.free_retries = 0
            task.losses = losses_of_requeued(task.reason)
            task.reason = task.detail = ""
            one.wait(task)
        return len(letters)

    async def drop_dead(self, crawl: str, which: DeadFilter, *, limit: int = 1000) -> int:
        one = self._crawl(crawl)
        one.expire_keys()
        letters = matching_dead(one, which)[:limit]
        for task in letters:
            one.drop(task)
        return len(letters)

    async def look_up(self, crawl: str, key: int) -> TaskStatus:
        return views.look_up(self._look(crawl), key)

    async def tasks_of(self, crawl: str, url: str, *, lanes: Sequence[str]) -> list[TaskStatus]:
        return views.tasks_of(self._look(crawl), url, lanes=lanes)

    async def samples(self, crawl: str, reason: str) -> list[str]:
        return list(self._look(crawl).samples.get(reason, []))

    async def beat(self, beat: WorkerBeat) -> None:
        self._beats[beat.worker] = msgspec.structs.replace(beat, seen=self._clock())

    async def workers(self, *, within: float = 60.0) -> list[WorkerBeat]:
        since = self._clock() - within
        return [beat for _, beat in sorted(self._beats.items()) if beat.seen >= since and not beat.left]

    async def workers_of(self, crawl: str) -> list[WorkerBeat]:
        since = self._clock() - WORKERS_KEPT_SECONDS
        mine = [beat for beat in self._beats.values() if beat.crawl == crawl and beat.seen >= since]
        return sorted(mine, key=lambda beat: (-beat.seen, beat.worker))[:WORKERS_KEPT]

    async def keep_point(self, crawl: str, point: Point) -> bool:
        one = self._crawl(crawl)
        return one.history.keep(point, now=one.wall)

    async def points(self, crawl: str, *, seconds: float, most: int = 500) -> list[Point]:
        one = self._look(crawl)
        return one.history.points(seconds=seconds, most=most, now=one.wall)

    async def hold_duty(
        self, duty: str, holder: str, *, seconds: float, notes: bytes | None = None, term: int | None = None
    ) -> Duty:
        found = self._duties.setdefault(duty, ModelDuty())
        return found.hold(DutyCall(holder, seconds, notes, term), now=self._clock())

    async def close(self) -> None:
        pass

    def _crawl(self, name: str) -> ModelCrawl:
        """The crawl as it is now, to be changed."""
        one = self._look(name)
        one.clock_shift = one.next_shift
        return one

    def _look(self, name: str) -> ModelCrawl:
        """The crawl as it is now. What a look notices of the clock is not kept."""
        if name not in self._crawls:
            raise UsageError(f"there is no crawl {name!r}; `shoal status` lists them")
        one = self._crawls[name]
        one.set_time(self._clock(), expected=self._times.expected(name))
        return one

    def _held(self, lease: Lease) -> ModelTask | None:
        """The task, if this lease still holds it."""
        one = self._crawls.get(lease.crawl)
        task = one.tasks.get(lease.task.key) if one else None
        return task if task and task.state == TaskState.LEASED and task.token == lease.token else None

    def _failures(self, results: Sequence[Result]) -> dict[int, str]:
        """The results that cannot be applied. A result whose lease is lost, or ended by this call, is stale instead."""
        failed: dict[int, str] = {}
        ended: set[tuple[str, int, int]] = set()
        for index, result in enumerate(results):
            flaw = flaw_of(result)
            lease = result.lease if isinstance(result, Result) else None
            if lease and not flaw and self._held(lease) and lacks_room(self._crawls[lease.crawl], result):
                flaw = TOO_MANY_KINDS
            if flaw and (lease is None or (self._held(lease) and lease_id(lease) not in ended)):
                failed[index] = flaw
            elif lease:
                ended.add(lease_id(lease))
        return failed

    def _end(self, result: Result) -> bool:
        """Apply a result, except for the tasks it found; false when its lease was lost."""
        task = self._held(result.lease)
        if task is None:
            if result.lease.crawl in self._crawls:
                one = self._crawl(result.lease.crawl)
                one.expire_keys()
                one.stale += 1
            return False
        one = self._crawl(result.lease.crawl)
        one.expire_keys()
        apply(one, task, result)
        return True


def lease_id(lease: Lease) -> tuple[str, int, int]:
    """A lease's own name: a crawl that was deleted and opened again may give tokens of its former leases again."""
    return lease.crawl, lease.task.key, lease.token
