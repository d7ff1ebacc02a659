"""The Redis frontier: a server or a cluster, shared by many machines. Here: its class, histories, duties."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from shoal.frontier.redis import control, deletion, views
from shoal.frontier.redis.connections import RedisConnections
from shoal.frontier.redis.lease import LeaseRequest, evict, lease
from shoal.frontier.redis.mend import Mend
from shoal.frontier.redis.outbox import Outbox
from shoal.frontier.redis.put import Samples, bury, know, know_from, put
from shoal.frontier.redis.repair import Repair
from shoal.frontier.redis.runner import ShardRunner
from shoal.frontier.redis.server_checks import check_server, warn_of_settings
from shoal.frontier.redis.settle import Settler, extend
from shoal.frontier.redis.shards import Shard, shard_of
from shoal.frontier.redis.wire import encode_update, number
from shoal.frontier.rules.constants import MOST_COUNTED
from shoal.frontier.rules.exits import check_exits
from shoal.frontier.rules.history import encode_point, readable_points
from shoal.frontier.rules.tasks import BAD_RECORD
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

DUTIES = "shoal:{duties}:"


async def keep_point(runner: ShardRunner, crawl: str, point: Point) -> bool:
    """The history of a crawl in several shards is in the first one."""
    answer = await runner.change(crawl, "keep_point", encode_point(point))
    return bool(answer[1] == b"1")


async def points(runner: ShardRunner, crawl: str, *, seconds: float, most: int) -> list[Point]:
    _, *flat = await runner.read(crawl, "points", number(seconds), most)
    return readable_points((float(at), data) for at, data in zip(flat[::2], flat[1::2], strict=True))


async def hold_duty(
    runner: ShardRunner, duty: str, holder: str, *, seconds: float, notes: bytes | None, term: int | None
) -> Duty:
    given = "" if term is None else term
    args = (duty, holder, number(seconds), int(notes is not None), notes or b"", given)
    async with runner.connections.borrow() as connection:
        await connection.send_bare_script("hold_duty", DUTIES, args)
        ((has_it, noted, current),) = await connection.answers()
    return Duty(has_it == b"1", noted, int(current))


class RedisFrontier:
    """Implements `Frontier`. Create it with `open`.

    Times are of the server's clock; `steady`, a monotonic clock of this process, serves to notice its steps. `clock` is
    for tests: its time is sent with every script.
    """

    def __init__(self, connections: RedisConnections) -> None:
        self._connections = connections
        self._repair = Repair(connections)
        self._mend = Mend(connections)
        self._runner = ShardRunner(connections, self._repaired, self._mended)
        self._samples = Samples(self._runner)
        self._outbox = Outbox(self._runner, self._samples)
        self._settler = Settler(self._runner, self._samples, self._outbox)

    async def _repaired(self, shard: Shard) -> None:
        await self._repair.after_mending(shard, self._mended)

    async def _mended(self, shard: Shard) -> None:
        """Set aside records that cannot be read; their URLs become dead letters."""
        tasks = await self._mend.run(shard)
        await self._repair.run(shard)
        if tasks:
            await self.bury(shard.crawl, [(task, BAD_RECORD) for task in tasks])

    @classmethod
    async def open(
        cls, url: str, *, clock: Callable[[], float] | None = None, steady: Callable[[], float] | None = None
    ) -> RedisFrontier:
        """Connect to the server and check it."""
        connections = RedisConnections(url, clock=clock, steady=steady)
        try:
            await check_server(connections)
        except BaseException:
            await connections.close()
            raise
        return cls(connections)

    async def open_crawl(self, crawl: Crawl) -> Crawl:
        is_new = not await control.is_known(self._runner, crawl.id)
        opened = await control.open_crawl(self._runner, crawl)
        if is_new:
            await warn_of_settings(self._connections)
        return opened

    async def crawls(self) -> list[Crawl]:
        return await control.crawls(self._runner)

    async def set_state(self, crawl: str, state: CrawlState, *, reason: str = "") -> None:
        await control.set_state(self._runner, crawl, state, reason=reason)

    async def set_feeding(self, crawl: str, feeder: str, *, seconds: float, makes_up: float | None = None) -> None:
        await self._runner.change(
            crawl, "feeding", feeder, number(seconds), "" if makes_up is None else number(makes_up)
        )

    async def delete_crawl(self, crawl: str, *, seconds: float = math.inf) -> bool:
        return await deletion.delete_crawl(self._runner, crawl, seconds=seconds)

    async def half_deleted(self) -> list[str]:
        return await deletion.half_deleted(self._runner)

    async def size(self, crawl: str) -> CrawlSize:
        answers = await self._runner.read_all(crawl, "size")
        return CrawlSize(bytes=sum(int(answer[1]) for answer in answers))

    async def drop_keys(self, crawl: str, *, seconds: float = math.inf) -> bool:
        return await deletion.drop_keys(self._runner, crawl, seconds=seconds)

    async def put(
        self,
        crawl: str,
        tasks: Sequence[Task],
        *,
        rejected: Mapping[str, int] | None = None,
        samples: Sequence[tuple[str, str]] = (),
    ) -> PutReport:
        return await put(self._runner, self._samples, crawl, tasks, rejected=rejected or {}, given=samples)

    async def bury(self, crawl: str, letters: Sequence[tuple[Task, str]]) -> PutReport:
        return await bury(self._runner, self._samples, crawl, letters)

    async def know(self, crawl: str, keys: Sequence[int]) -> int:
        return await know(self._runner, crawl, keys)

    async def know_from(self, crawl: str, earlier: str) -> int:
        return await know_from(self._runner, crawl, earlier)

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
        self._repair.note_lease_call(horizon=horizon, seconds=seconds)
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
        return await lease(self._runner, self._outbox, crawls, request)

    async def extend(self, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
        return await extend(self._runner, leases, seconds=seconds)

    async def settle(self, results: Sequence[Result]) -> SettleReport:
        return await self._settler.settle(results)

    async def evict(
        self, worker: str, *, suspects: Sequence[int] = (), cause: str = "", known: Sequence[int] | None = None
    ) -> int:
        return await evict(self._runner, worker, suspects=suspects, cause=cause, known=known)

    async def forget(self, crawl: str, keys: Sequence[int]) -> None:
        await control.forget(self._runner, crawl, keys)

    async def progress(self, crawl: str) -> Progress:
        return await self._runner.readable(crawl, lambda: views.progress(self._runner, crawl))

    async def lanes(self, crawl: str, *, limit: int = 100, skip: int = 0, search: str = "") -> list[LaneStatus]:
        return await self._runner.readable(
            crawl, lambda: views.lanes(self._runner, crawl, limit=limit, skip=skip, search=search)
        )

    async def update_lane(self, crawl: str, lane: str, update: LaneUpdate) -> None:
        await self._runner.change(crawl, "pace", lane, *encode_update(update), lane=lane)

    async def rules(self, crawl: str, lane: str) -> tuple[int, bytes]:
        return await self._runner.readable(crawl, lambda: views.rules(self._runner, crawl, lane))

    async def reserve(self, crawl: str, lane: str, *, exit: str = DIRECT, missed: float = 0.0) -> float:  # noqa: A002 -- as the contract has it
        times = self._connections.times
        asked = times.now()
        _, wait, time_of_crawl = await self._runner.change(crawl, "reserve", lane, exit, number(missed), lane=lane)
        now, shift = map(float, time_of_crawl.split())
        shards = await self._runner.shards(crawl)
        prefix = shards[shard_of(lane, of=len(shards))].prefix
        return float(wait) - times.age(prefix, now - shift, asked=asked)

    async def exits(self, crawl: str, *, limit: int = 1000) -> list[ExitStatus]:
        return await self._runner.readable(crawl, lambda: views.exits(self._runner, crawl, limit=limit))

    async def session(self, crawl: str, exit: str) -> tuple[int, bytes]:  # noqa: A002 -- as the contract has it
        return await self._runner.readable(crawl, lambda: views.session(self._runner, crawl, exit))

    async def keep_session(self, crawl: str, name: str, session: bytes, *, version: int) -> tuple[int, bytes]:
        return await views.keep_session(self._runner, crawl, name, session, version=version)

    async def dead(self, crawl: str, which: DeadFilter, *, limit: int = 100) -> list[DeadLetter]:
        return await self._runner.readable(crawl, lambda: control.dead(self._runner, crawl, which, limit=limit))

    async def count_dead(self, crawl: str, which: DeadFilter, *, most: int = MOST_COUNTED) -> DeadCount:
        return await self._runner.readable(crawl, lambda: control.count_dead(self._runner, crawl, which, most=most))

    async def requeue_dead(self, crawl: str, which: DeadFilter, *, limit: int = 1000) -> int:
        return await control.clear_dead(self._runner, crawl, "requeue", which, limit=limit)

    async def drop_dead(self, crawl: str, which: DeadFilter, *, limit: int = 1000) -> int:
        return await control.clear_dead(self._runner, crawl, "drop", which, limit=limit)

    async def look_up(self, crawl: str, key: int) -> TaskStatus:
        return await self._runner.readable(crawl, lambda: views.look_up(self._runner, crawl, key))

    async def tasks_of(self, crawl: str, url: str, *, lanes: Sequence[str]) -> list[TaskStatus]:
        return await self._runner.readable(crawl, lambda: views.tasks_of(self._runner, crawl, url, lanes=lanes))

    async def samples(self, crawl: str, reason: str) -> list[str]:
        return await self._runner.readable(crawl, lambda: views.samples(self._runner, crawl, reason))

    async def beat(self, beat: Heartbeat) -> None:
        await views.beat(self._runner, beat)

    async def workers(self, *, within: float = 60.0) -> list[Heartbeat]:
        return await views.workers(self._runner, within=within)

    async def workers_of(self, crawl: str) -> list[Heartbeat]:
        return await views.workers_of(self._runner, crawl)

    async def keep_point(self, crawl: str, point: Point) -> bool:
        return await keep_point(self._runner, crawl, point)

    async def points(self, crawl: str, *, seconds: float, most: int = 500) -> list[Point]:
        return await self._runner.readable(crawl, lambda: points(self._runner, crawl, seconds=seconds, most=most))

    async def hold_duty(
        self, duty: str, holder: str, *, seconds: float, notes: bytes | None = None, term: int | None = None
    ) -> Duty:
        return await hold_duty(self._runner, duty, holder, seconds=seconds, notes=notes, term=term)

    async def close(self) -> None:
        await self._connections.close()
