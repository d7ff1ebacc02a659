"""The frontier of a worker behind a pipe: every verb is a call to the coordinator, which has the real frontier. The
types of arguments come from the signatures of `Frontier`."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec

from shoal.errors import ShoalError
from shoal.frontier.base import Frontier
from shoal.frontier.clock import steady_seconds
from shoal.frontier.rules.constants import MOST_COUNTED
from shoal.model import (
    DIRECT,
    HTTP,
    Crawl,
    CrawlSize,
    CrawlState,
    Dead,
    DeadCount,
    DeadFilter,
    DeadLetter,
    Done,
    Duty,
    ExitStatus,
    ExitUse,
    Handed,
    Heartbeat,
    LaneStatus,
    LaneUpdate,
    Lease,
    LeaseBatch,
    Point,
    Pool,
    Progress,
    PutReport,
    Released,
    Result,
    Retry,
    SettleReport,
    Task,
    TaskStatus,
)
from shoal.pipes import open_pipe
from shoal.pipes.base import Pipe
from shoal.pipes.calls import PipeCalls, Reply
from shoal.pipes.messages import encoded

# The verbs that workers need. All others are for commands, which use the real frontier.
WORKER_VERBS: Final = frozenset(
    {
        "beat", "crawls", "evict", "extend", "keep_session", "lease", "open_crawl", "progress", "put", "reserve",
        "rules", "session", "set_state", "settle", "workers",
    }
)  # fmt: skip
ALL_VERBS: Final = frozenset(
    name for name, member in vars(Frontier).items() if inspect.iscoroutinefunction(member) and name != "close"
)
T = TypeVar("T")


class Settling(msgspec.Struct, frozen=True):
    """The results of a settle call by kind, each with its index in the call: as one list their kinds would be lost."""

    done: list[tuple[int, Done]] = []
    retry: list[tuple[int, Retry]] = []
    dead: list[tuple[int, Dead]] = []
    released: list[tuple[int, Released]] = []
    handed: list[tuple[int, Handed]] = []

    @classmethod
    def of(cls, results: Sequence[Result]) -> Settling:
        kinds: tuple[list[Any], ...] = ([], [], [], [], [])
        for index, result in enumerate(results):
            match result:
                case Done():
                    kinds[0].append((index, result))
                case Retry():
                    kinds[1].append((index, result))
                case Dead():
                    kinds[2].append((index, result))
                case Released():
                    kinds[3].append((index, result))
                case Handed():
                    kinds[4].append((index, result))
                case _:
                    raise TypeError(f"{result!r} is not a result")
        return cls(*kinds)

    def results(self) -> list[Result]:
        """The results in the order of the call."""
        by_index: dict[int, Result] = {}
        for kind in (self.done, self.retry, self.dead, self.released, self.handed):
            by_index.update(kind)
        return [by_index[index] for index in sorted(by_index)]


def sendable(results: Sequence[Result]) -> tuple[list[int], dict[int, str]]:
    """The indexes of the results that can go through a pipe, and why the others cannot."""
    good: list[int] = []
    failed: dict[int, str] = {}
    for index, result in enumerate(results):
        try:
            if not isinstance(result, Result):
                raise TypeError(f"{result!r} is not a result")
            encoded(result)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            failed[index] = str(error)
        else:
            good.append(index)
    return good, failed


@lru_cache(maxsize=64)
def arguments_of(verb: str) -> msgspec.msgpack.Decoder[Any]:
    """Decodes the arguments of a verb to a struct with a field for each of them."""
    if verb == "settle":
        return msgspec.msgpack.Decoder(Settling)
    method = getattr(Frontier, verb)
    hints = typing.get_type_hints(method)
    fields: list[Any] = []
    for name, parameter in inspect.signature(method).parameters.items():
        if name == "self":
            continue
        default = msgspec.NODEFAULT if parameter.default is parameter.empty else parameter.default
        fields.append((name, hints[name], default))
    return msgspec.msgpack.Decoder(msgspec.defstruct(verb, fields, kw_only=True))


def called_with(verb: str, arguments: msgspec.Raw) -> dict[str, Any]:
    """The arguments of a call, by name."""
    found = arguments_of(verb).decode(arguments)
    if isinstance(found, Settling):
        return {"results": found.results()}
    return {name: getattr(found, name) for name in found.__struct_fields__}


class PipedFrontier:
    """Keeps the frontier's contract for the verbs that the coordinator allows (`WORKER_VERBS`); others raise
    UsageError."""

    def __init__(self, pipe: Pipe, *, steady: Callable[[], float] | None = steady_seconds) -> None:
        self._calls = PipeCalls(pipe, stray=self._give_back, steady=steady)
        self._giving: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, pipe: Pipe | str, *, steady: Callable[[], float] | None = steady_seconds) -> PipedFrontier:
        """Connect, and wait a few seconds for a coordinator's answer. `pipe` may be a URL; it is closed with the
        frontier. `steady` is the clock that measures the age of answers; None: every answer counts as new."""
        frontier = cls(open_pipe(pipe) if isinstance(pipe, str) else pipe, steady=steady)
        try:
            await frontier._calls.open()
        except BaseException:
            await frontier.close()
            raise
        return frontier

    async def open_crawl(self, crawl: Crawl) -> Crawl:
        return await self._ask("open_crawl", Crawl, crawl=crawl)

    async def crawls(self) -> list[Crawl]:
        return await self._ask("crawls", list[Crawl])

    async def set_state(self, crawl: str, state: CrawlState, *, reason: str = "") -> None:
        await self._ask("set_state", object, crawl=crawl, state=state, reason=reason)

    async def set_feeding(self, crawl: str, feeder: str, *, seconds: float, makes_up: float | None = None) -> None:
        await self._ask("set_feeding", object, crawl=crawl, feeder=feeder, seconds=seconds, makes_up=makes_up)

    async def delete_crawl(self, crawl: str, *, seconds: float = math.inf) -> bool:
        return await self._ask("delete_crawl", bool, crawl=crawl, seconds=seconds)

    async def half_deleted(self) -> list[str]:
        return await self._ask("half_deleted", list[str])

    async def size(self, crawl: str) -> CrawlSize:
        return await self._ask("size", CrawlSize, crawl=crawl)

    async def drop_keys(self, crawl: str, *, seconds: float = math.inf) -> bool:
        return await self._ask("drop_keys", bool, crawl=crawl, seconds=seconds)

    async def put(
        self,
        crawl: str,
        tasks: Sequence[Task],
        *,
        rejected: Mapping[str, int] | None = None,
        samples: Sequence[tuple[str, str]] = (),
    ) -> PutReport:
        return await self._ask("put", PutReport, crawl=crawl, tasks=tasks, rejected=rejected, samples=samples)

    async def bury(self, crawl: str, letters: Sequence[tuple[Task, str]]) -> PutReport:
        return await self._ask("bury", PutReport, crawl=crawl, letters=letters)

    async def know(self, crawl: str, keys: Sequence[int]) -> int:
        return await self._ask("know", int, crawl=crawl, keys=list(keys))

    async def know_from(self, crawl: str, earlier: str) -> int:
        return await self._ask("know_from", int, crawl=crawl, earlier=earlier)

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
        arguments = {
            "crawls": crawls,
            "limit": limit,
            "worker": worker,
            "seconds": seconds,
            "horizon": horizon,
            "landed": landed,
            "kinds": kinds,
            "offers": offers,
            "room": room,
        }
        told = await self._calls.call("lease", arguments, crawl=crawls[0] if len(crawls) == 1 else "")
        # The times of the leases count from the frontier's answer: the age is what the pipe added.
        return msgspec.structs.replace(_decoded(told.value, LeaseBatch), at=time.monotonic() - told.age)

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        return await self._ask("extend", list[Lease], leases=leases, seconds=seconds) if leases else []

    async def settle(self, results: Sequence[Result]) -> SettleReport:
        try:
            return await self._settle(results)
        except (TypeError, ValueError, OverflowError, RecursionError):
            # One result cannot be encoded: settle the others.
            good, failed = sendable(results)
            report = await self._settle([results[index] for index in good])
            failed |= {good[index]: why for index, why in report.failed.items()}
            return msgspec.structs.replace(report, failed=failed)

    async def evict(
        self, worker: str, *, suspects: Sequence[int] = (), cause: str = "", known: Sequence[int] | None = None
    ) -> int:
        return await self._ask("evict", int, worker=worker, suspects=suspects, cause=cause, known=known)

    async def forget(self, crawl: str, keys: Sequence[int]) -> None:
        await self._ask("forget", object, crawl=crawl, keys=keys)

    async def progress(self, crawl: str) -> Progress:
        return await self._ask("progress", Progress, crawl=crawl)

    async def lanes(self, crawl: str, *, limit: int = 100, skip: int = 0, search: str = "") -> list[LaneStatus]:
        return await self._ask("lanes", list[LaneStatus], crawl=crawl, limit=limit, skip=skip, search=search)

    async def update_lane(self, crawl: str, lane: str, update: LaneUpdate) -> None:
        await self._ask("update_lane", object, crawl=crawl, lane=lane, update=update)

    async def rules(self, crawl: str, lane: str) -> tuple[int, bytes]:
        return await self._ask("rules", tuple[int, bytes], crawl=crawl, lane=lane)

    async def reserve(self, crawl: str, lane: str, *, exit: str = DIRECT, missed: float = 0.0) -> float:  # noqa: A002 -- as the contract has it
        arguments = {"crawl": crawl, "lane": lane, "exit": exit, "missed": missed}
        told = await self._calls.call("reserve", arguments, crawl=crawl)
        return _decoded(told.value, float) - told.age

    async def exits(self, crawl: str, *, limit: int = 1000) -> list[ExitStatus]:
        return await self._ask("exits", list[ExitStatus], crawl=crawl, limit=limit)

    async def session(self, crawl: str, exit: str) -> tuple[int, bytes]:  # noqa: A002 -- as the contract has it
        return await self._ask("session", tuple[int, bytes], crawl=crawl, exit=exit)

    async def keep_session(self, crawl: str, name: str, session: bytes, *, version: int) -> tuple[int, bytes]:
        kept = {"crawl": crawl, "name": name, "session": session, "version": version}
        return await self._ask("keep_session", tuple[int, bytes], **kept)

    async def dead(self, crawl: str, which: DeadFilter, *, limit: int = 100) -> list[DeadLetter]:
        return await self._ask("dead", list[DeadLetter], crawl=crawl, which=which, limit=limit)

    async def count_dead(self, crawl: str, which: DeadFilter, *, most: int = MOST_COUNTED) -> DeadCount:
        return await self._ask("count_dead", DeadCount, crawl=crawl, which=which, most=most)

    async def requeue_dead(self, crawl: str, which: DeadFilter, *, limit: int = 1000) -> int:
        return await self._ask("requeue_dead", int, crawl=crawl, which=which, limit=limit)

    async def drop_dead(self, crawl: str, which: DeadFilter, *, limit: int = 1000) -> int:
        return await self._ask("drop_dead", int, crawl=crawl, which=which, limit=limit)

    async def look_up(self, crawl: str, key: int) -> TaskStatus:
        return await self._ask("look_up", TaskStatus, crawl=crawl, key=key)

    async def tasks_of(self, crawl: str, url: str, *, lanes: Sequence[str]) -> list[TaskStatus]:
        return await self._ask("tasks_of", list[TaskStatus], crawl=crawl, url=url, lanes=lanes)

    async def samples(self, crawl: str, reason: str) -> list[str]:
        return await self._ask("samples", list[str], crawl=crawl, reason=reason)

    async def beat(self, beat: Heartbeat) -> None:
        await self._ask("beat", object, beat=beat)

    async def workers(self, *, within: float = 60.0) -> list[Heartbeat]:
        return await self._ask("workers", list[Heartbeat], within=within)

    async def workers_of(self, crawl: str) -> list[Heartbeat]:
        return await self._ask("workers_of", list[Heartbeat], crawl=crawl)

    async def keep_point(self, crawl: str, point: Point) -> bool:
        return await self._ask("keep_point", bool, crawl=crawl, point=point)

    async def points(self, crawl: str, *, seconds: float, most: int = 500) -> list[Point]:
        return await self._ask("points", list[Point], crawl=crawl, seconds=seconds, most=most)

    async def hold_duty(
        self, duty: str, holder: str, *, seconds: float, notes: bytes | None = None, term: int | None = None
    ) -> Duty:
        held = {"duty": duty, "holder": holder, "seconds": seconds, "notes": notes, "term": term}
        return await self._ask("hold_duty", Duty, **held)

    async def close(self) -> None:
        for giving in self._giving:
            giving.cancel()
        await asyncio.gather(*self._giving, return_exceptions=True)
        await self._calls.close()

    async def _ask(self, verb: str, gives: type[T], /, **arguments: Any) -> T:
        crawl = arguments.get("crawl", "")
        told = await self._calls.call(verb, arguments, crawl=crawl if isinstance(crawl, str) else crawl.id)
        return _decoded(told.value, gives)

    async def _settle(self, results: Sequence[Result]) -> SettleReport:
        crawl = results[0].lease.crawl if results else ""
        told = await self._calls.call("settle", Settling.of(results), crawl=crawl)
        return _decoded(told.value, SettleReport)

    def _give_back(self, verb: str, told: Reply) -> None:
        """Release the leases of an answer that nobody waits for: it came too late, or a second time."""
        if verb == "lease" and (leases := _decoded(told.value, LeaseBatch).leases):
            giving = asyncio.create_task(self._release(leases))
            self._giving.add(giving)
            giving.add_done_callback(self._giving.discard)

    async def _release(self, leases: Sequence[Lease]) -> None:
        # A lease that cannot be released now expires.
        with contextlib.suppress(ShoalError):
            await self.settle([Released(lease=lease, exit=_unused(lease)) for lease in leases])


def _unused(lease: Lease) -> ExitUse | None:
    return None if lease.exit == DIRECT else ExitUse(verdict="unused")


def _decoded(value: msgspec.Raw, gives: type[T]) -> T:
    return msgspec.msgpack.decode(value, type=gives)
