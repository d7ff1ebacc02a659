"""The history of crawls, and the duties of the whole frontier."""

from __future__ import annotations

from shoal.frontier.redis.shard_runner import ShardRunner
from shoal.frontier.redis.wire import number
from shoal.frontier.rules.thinning import encode_point, readable_points
from shoal.model import Duty, Point

DUTIES = "shoal:{duties}:"


async def keep_point(runner: ShardRunner, crawl: str, point: Point) -> bool:
    """A crawl in several shards has its history in the first one."""
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
