"""The SQLite frontier: one file, shared by the processes of one machine. Here: its class, crawl histories, duties."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from shoal.errors import StorageError
from shoal.frontier.clock import SteadyTimes
from shoal.frontier.rules.constants import (
    LONG_POINT_SECONDS,
    LONG_POINTS_KEPT_SECONDS,
    MOST_COUNTED,
    POINT_SECONDS,
    POINTS_KEPT_SECONDS,
)
from shoal.frontier.rules.duties import HeldDuty, Step, step_of
from shoal.frontier.rules.exits import check_exits
from shoal.frontier.rules.history import encode_point, readable_points, thinned
from shoal.frontier.sqlite import control, pools, views
from shoal.frontier.sqlite.deletion import delete_some, drop_some_keys, half_deleted, size
from shoal.frontier.sqlite.lanes import LeaseRequest, reserve
from shoal.frontier.sqlite.lease import Stuck, lease
from shoal.frontier.sqlite.ledger import Ledger
from shoal.frontier.sqlite.mend import UNREADABLE, mend
from shoal.frontier.sqlite.put import (
    START,
    Position,
    bury,
    check_earlier,
    done_keys,
    expire_keys,
    know,
    note_undone,
    put,
)
from shoal.frontier.sqlite.rows import Moment
from shoal.frontier.sqlite.settle import evict, extend, reclaim_unknown, settle
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
from shoal.sqlite_file import connect, storage_errors, transaction

T = TypeVar("T")
LONGEST_PAUSE = 0.05  # seconds between two steps of long work
KNOWN_AT_ONCE = 5_000  # keys that one transaction marks as known
# After a walk over all crawls that found nothing damaged, wrong input causes the next walk only after so many times the
# walk's duration.
MEND_REST = 20.0


class SqliteFrontier:
    """Implements `Frontier`. Create it with `open`; every method runs in the frontier's own thread."""

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] | None = None,
    ) -> None:
        self._path = path
        self._clock = clock
        self._times = SteadyTimes(steady)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shoal-frontier")
        self._db: sqlite3.Connection
        self._closed = False
        self._no_mend_before = 0.0

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] | None = None,
    ) -> SqliteFrontier:
        """Open the file, and create its tables if needed. `steady`: a monotonic clock, to notice steps of `clock`."""
        frontier = cls(path, clock=clock, steady=steady)
        try:
            await frontier._run(frontier._connect)
        except BaseException:
            frontier._thread.shutdown(wait=False)
            raise
        return frontier

    async def open_crawl(self, crawl: Crawl) -> Crawl:
        while (opened := await self._write(lambda db, at: control.open_crawl(db, crawl, at=at))) is None:
            await self.delete_crawl(crawl.id)
        return opened

    async def crawls(self) -> list[Crawl]:
        return await self._read(lambda db, _: control.crawls(db, self._path))

    async def set_state(self, crawl: str, state: CrawlState, *, reason: str = "") -> None:
        await self._change_crawl(crawl, lambda ledger: control.set_state(ledger, state, reason=reason))

    async def set_feeding(self, crawl: str, feeder: str, *, seconds: float, makes_up: float | None = None) -> None:
        await self._change_crawl(
            crawl, lambda ledger: control.set_feeding(ledger, feeder, seconds=seconds, makes_up=makes_up)
        )

    async def delete_crawl(self, crawl: str, *, seconds: float = math.inf) -> bool:
        return await self._stepwise(
            lambda: self._write(lambda db, at: delete_some(db, crawl, wall=at.wall)), seconds=seconds
        )

    async def half_deleted(self) -> list[str]:
        return await self._read(lambda db, _: half_deleted(db))

    async def size(self, crawl: str) -> CrawlSize:
        return await self._read_crawl(crawl, size)

    async def drop_keys(self, crawl: str, *, seconds: float = math.inf) -> bool:
        return await self._stepwise(lambda: self._change_crawl(crawl, drop_some_keys), seconds=seconds)

    async def put(
        self,
        crawl: str,
        tasks: Sequence[Task],
        *,
        rejected: Mapping[str, int] | None = None,
        samples: Sequence[tuple[str, str]] = (),
    ) -> PutReport:
        def work(ledger: Ledger) -> PutReport:
            expire_keys(ledger)
            ledger.reject(rejected or {}, samples)
            report = put(ledger, list(tasks))
            ledger.flush()
            return report

        return await self._change_crawl(crawl, work)

    async def bury(self, crawl: str, letters: Sequence[tuple[Task, str]]) -> PutReport:
        def work(ledger: Ledger) -> PutReport:
            expire_keys(ledger)
            report = bury(ledger, letters)
            ledger.flush()
            return report

        return await self._change_crawl(crawl, work)

    async def know(self, crawl: str, keys: Sequence[int]) -> int:
        def work(ledger: Ledger, part: Sequence[int]) -> int:
            expire_keys(ledger)
            new = know(ledger, part)
            ledger.flush()
            return new

        # In parts: other processes wait while this one writes.
        parts = [keys[start : start + KNOWN_AT_ONCE] for start in range(0, max(1, len(keys)), KNOWN_AT_ONCE)]
        return sum([await self._change_crawl(crawl, partial(work, part=part)) for part in parts])

    async def know_from(self, crawl: str, earlier: str) -> int:
        await self._read_crawl(earlier, check_earlier)
        row = await self._read_crawl(earlier, lambda ledger: note_undone(ledger, None))
        while row is not None:
            row = await self._read_crawl(earlier, partial(note_undone, after=row))
        position: Position | None = START
        new = await self.know(crawl, [])
        while position is not None:
            keys, position = await self._read_crawl(earlier, partial(done_keys, after=position))
            new += await self.know(crawl, keys)
        # Keys that were dropped meanwhile are missing.
        await self._read_crawl(earlier, check_earlier)
        return new

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
        check_exits(offers)
        request = LeaseRequest(
            limit=limit,
            worker=worker,
            seconds=seconds,
            horizon=horizon,
            landed=landed,
            kinds=kinds,
            offers=offers,
            room=room,
        )
        return await self._write(lambda db, at: lease(db, crawls, request, at=at), given=False)

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        return await self._write(lambda db, at: extend(db, leases, seconds=seconds, at=at))

    async def settle(self, results: Sequence[Result]) -> SettleReport:
        return await self._run(lambda: self._settle(results))

    async def evict(
        self, worker: str, *, suspects: Sequence[int] = (), cause: str = "", known: Sequence[int] | None = None
    ) -> int:
        if known is not None:
            return await self._write(lambda db, at: reclaim_unknown(db, worker, set(known), at=at), given=False)
        return await self._write(lambda db, at: evict(db, worker, suspects=suspects, cause=cause, at=at), given=False)

    async def forget(self, crawl: str, keys: Sequence[int]) -> None:
        await self._change_crawl(crawl, lambda ledger: control.forget(ledger, keys))

    async def progress(self, crawl: str) -> Progress:
        return await self._read_crawl(crawl, views.progress)

    async def lanes(self, crawl: str, *, limit: int = 100, skip: int = 0, search: str = "") -> list[LaneStatus]:
        return await self._read_crawl(crawl, lambda ledger: views.lanes(ledger, limit=limit, skip=skip, search=search))

    async def update_lane(self, crawl: str, lane: str, update: LaneUpdate) -> None:
        def work(ledger: Ledger) -> None:
            ledger.update_lane(ledger.lane(lane), update)
            ledger.flush()

        await self._change_crawl(crawl, work)

    async def rules(self, crawl: str, lane: str) -> tuple[int, bytes]:
        return await self._read_crawl(crawl, lambda ledger: views.rules(ledger, lane))

    async def reserve(self, crawl: str, lane: str, *, exit: str = DIRECT, missed: float = 0.0) -> float:  # noqa: A002 -- as the contract has it
        def work(ledger: Ledger) -> tuple[float, float]:
            start = reserve(ledger, ledger.lane(lane), exit, missed=missed)
            ledger.flush()
            return start - ledger.now, self._times.now()

        wait, at = await self._change_crawl(crawl, work)
        return wait - (self._times.now() - at)

    async def exits(self, crawl: str, *, limit: int = 1000) -> list[ExitStatus]:
        return await self._read_crawl(
            crawl, lambda ledger: pools.statuses(ledger.db, ledger.crawl.id, limit=limit, now=ledger.now)
        )

    async def session(self, crawl: str, exit: str) -> tuple[int, bytes]:  # noqa: A002 -- as the contract has it
        def work(ledger: Ledger) -> tuple[int, bytes]:
            found = ledger.exits.exit(exit)
            return found.session_version, found.session

        return await self._read_crawl(crawl, work)

    async def keep_session(self, crawl: str, name: str, session: bytes, *, version: int) -> tuple[int, bytes]:
        def work(ledger: Ledger) -> tuple[int, bytes]:
            kept = ledger.exits.keep_session(name, session, version=version)
            ledger.flush()
            return kept

        return await self._change_crawl(crawl, work)

    async def dead(self, crawl: str, which: DeadFilter, *, limit: int = 100) -> list[DeadLetter]:
        return await self._read_crawl(crawl, lambda ledger: views.dead(ledger, which, limit=limit))

    async def count_dead(self, crawl: str, which: DeadFilter, *, most: int = MOST_COUNTED) -> DeadCount:
        return await self._read_crawl(crawl, lambda ledger: control.count_dead(ledger, which, most=most))

    async def requeue_dead(self, crawl: str, which: DeadFilter, *, limit: int = 1000) -> int:
        return await self._change_crawl(crawl, lambda ledger: control.requeue_dead(ledger, which, limit=limit))

    async def drop_dead(self, crawl: str, which: DeadFilter, *, limit: int = 1000) -> int:
        return await self._change_crawl(crawl, lambda ledger: control.drop_dead(ledger, which, limit=limit))

    async def look_up(self, crawl: str, key: int) -> TaskStatus:
        return await self._read_crawl(crawl, lambda ledger: views.look_up(ledger, key))

    async def tasks_of(self, crawl: str, url: str, *, lanes: Sequence[str]) -> list[TaskStatus]:
        return await self._read_crawl(crawl, lambda ledger: views.tasks_of(ledger, url, lanes=lanes))

    async def samples(self, crawl: str, reason: str) -> list[str]:
        return await self._read_crawl(crawl, lambda ledger: ledger.samples(reason))

    async def beat(self, beat: Heartbeat) -> None:
        await self._write(lambda db, at: views.beat(db, beat, now=at.wall))

    async def workers(self, *, within: float = 60.0) -> list[Heartbeat]:
        return await self._read(lambda db, at: views.workers(db, since=at.wall - within))

    async def workers_of(self, crawl: str) -> list[Heartbeat]:
        return await self._read(lambda db, _: views.workers_of(db, crawl))

    async def keep_point(self, crawl: str, point: Point) -> bool:
        return await self._change_crawl(crawl, lambda ledger: keep_point(ledger, point))

    async def points(self, crawl: str, *, seconds: float, most: int = 500) -> list[Point]:
        return await self._read_crawl(crawl, lambda ledger: points(ledger, seconds=seconds, most=most))

    async def hold_duty(
        self, duty: str, holder: str, *, seconds: float, notes: bytes | None = None, term: int | None = None
    ) -> Duty:
        return await self._write(
            lambda db, at: hold_duty(db, duty, holder, seconds=seconds, notes=notes, term=term, now=at.wall)
        )

    async def close(self) -> None:
        if not self._closed:
            await self._run(self._db.close)
            self._closed = True
            self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise StorageError(f"the frontier at {self._path} is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _stepwise(self, step: Callable[[], Awaitable[bool]], *, seconds: float) -> bool:
        """Repeat `step` until it gives True, or `seconds` are over; pauses let other processes write."""
        began = time.monotonic()
        while True:
            step_began = time.monotonic()
            if await step():
                return True
            if time.monotonic() - began >= seconds:
                return False
            # Waiting processes retry SQLite's lock only now and then: without a pause they would not get it.
            await asyncio.sleep(min(LONGEST_PAUSE, time.monotonic() - step_began))

    async def _write(self, work: Callable[[sqlite3.Connection, Moment], T], *, given: bool = True) -> T:
        return await self._run(lambda: self._in_transaction(work, given=given))

    async def _change_crawl(self, crawl: str, work: Callable[[Ledger], T]) -> T:
        return await self._write(lambda db, at: work(control.load(db, crawl, at=at)))

    async def _read(self, work: Callable[[sqlite3.Connection, Moment], T]) -> T:
        return await self._run(lambda: self._in_transaction(work, "DEFERRED", given=False))

    async def _read_crawl(self, crawl: str, work: Callable[[Ledger], T]) -> T:
        return await self._read(lambda db, at: work(control.load(db, crawl, at=at)))

    def _connect(self) -> None:
        self._db = connect(self._path, part="frontier")

    def _in_transaction(
        self, work: Callable[[sqlite3.Connection, Moment], T], mode: str = "IMMEDIATE", *, given: bool = True
    ) -> T:
        """Do the work in one transaction. If it fails on a record that cannot be read, set such records aside and do it
        again. `given`: the failure may also come from the caller's arguments."""
        with storage_errors(self._path):
            try:
                return self._once(work, mode)
            except Stuck:
                self._mended(given=True)
            except UNREADABLE:
                if not self._mended(given=given):
                    raise
            return self._once(work, mode, mended=True)

    def _once(self, work: Callable[[sqlite3.Connection, Moment], T], mode: str, *, mended: bool = False) -> T:
        with transaction(self._db, mode):
            # The clock is read inside the transaction: waiting for the lock takes time.
            return work(self._db, Moment(self._clock(), self._times, mode == "IMMEDIATE", mended))

    def _mended(self, *, given: bool) -> bool:
        """Set aside records that cannot be read; gives whether there were any. Limits walks caused by wrong input."""
        began = time.monotonic()
        if given and began < self._no_mend_before:
            return False
        with transaction(self._db):
            found = mend(self._db, now=self._clock())
        ended = time.monotonic()
        self._no_mend_before = 0.0 if found else ended + max(1.0, MEND_REST * (ended - began))
        return bool(found)

    def _settle(self, results: Sequence[Result]) -> SettleReport:
        """Apply all results in one transaction; if one of them fails, each in its own."""
        try:
            return self._settle_together(results)
        except StorageError:
            raise
        except Exception:
            return self._settle_singly(results)

    def _settle_together(self, results: Sequence[Result]) -> SettleReport:
        return self._in_transaction(lambda db, at: settle(db, results, at=at))

    def _settle_singly(self, results: Sequence[Result]) -> SettleReport:
        stale: list[Lease] = []
        refused: dict[int, str] = {}
        failed: dict[int, str] = {}
        duplicates: list[tuple[int, int]] = []
        epochs: dict[str, int] = {}
        for index, result in enumerate(results):
            try:
                report = self._settle_together([result])
            except StorageError:
                raise
            except Exception as error:
                failed[index] = f"{type(error).__name__}: {error}"
            else:
                stale += report.stale
                refused |= report.refused
                duplicates += report.duplicates
                epochs[result.lease.crawl] = report.epoch
        epoch = sum(epochs.values())
        return SettleReport(stale=stale, refused=refused, epoch=epoch, failed=failed, duplicates=duplicates)


_STEPS = ((POINT_SECONDS, POINTS_KEPT_SECONDS), (LONG_POINT_SECONDS, LONG_POINTS_KEPT_SECONDS))
# Points of the long step only from before the first of the short step: later ones would be there twice.
_SELECT = (
    "SELECT at, point FROM point WHERE crawl = :crawl AND typeof(at) = 'real' AND at >= :since AND (step = :short"
    " OR at < (SELECT min(at) FROM point WHERE crawl = :crawl AND step = :short)) ORDER BY at"
)


def keep_point(ledger: Ledger, point: Point) -> bool:
    db, crawl, now = ledger.db, ledger.crawl.id, ledger.wall
    data = encode_point(point)
    known = "SELECT 1 FROM point WHERE crawl = ? AND step = ? AND slot = ?"
    is_first = db.execute(known, (crawl, POINT_SECONDS, now // POINT_SECONDS)).fetchone() is None
    for step, kept_seconds in _STEPS:
        db.execute(
            "INSERT OR REPLACE INTO point (crawl, step, slot, at, point) VALUES (?, ?, ?, ?, ?)",
            (crawl, step, int(now // step), now, data),
        )
        oldest = int((now - kept_seconds) // step)
        db.execute("DELETE FROM point WHERE crawl = ? AND step = ? AND slot < ?", (crawl, step, oldest))
    return is_first


def points(ledger: Ledger, *, seconds: float, most: int) -> list[Point]:
    given = {"crawl": ledger.crawl.id, "since": ledger.wall - seconds, "short": POINT_SECONDS}
    rows = ledger.db.execute(_SELECT, given).fetchall()
    return readable_points(rows[index] for index in thinned([at for at, _ in rows], most))


def hold_duty(
    db: sqlite3.Connection, duty: str, holder: str, *, seconds: float, notes: bytes | None, term: int | None, now: float
) -> Duty:
    query = "SELECT notes, holder, since, until, term FROM duty WHERE name = ?"
    noted, *stored = db.execute(query, (duty,)).fetchone() or (b"",)
    is_look = not seconds and notes is None
    step, new_term = step_of(HeldDuty(*stored), holder, is_look=is_look, term=term, now=now)
    if step is not Step.HELD:
        return Duty(step is Step.LOOKED, noted, new_term)
    kept = noted if notes is None else notes
    db.execute(
        "INSERT OR REPLACE INTO duty (name, holder, since, until, notes, term) VALUES (?, ?, ?, ?, ?, ?)",
        (duty, holder, now, now + seconds, kept, new_term),
    )
    return Duty(True, kept, new_term)
