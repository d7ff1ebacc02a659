"""A crawl's `max_pages` over several shards: each accepts what it was granted, and all grants together are the budget.

A client with tasks for a shard without allowance reclaims the allowance that the shards have not used, tells the
first shard how many tasks each of them has accepted, and asks it for more. A grant is an absolute number, valid for one
generation of the shard: a grant that arrives after other clients have reclaimed and shared out again is void. So
nothing is granted twice, and nothing is lost with a client that dies on the way.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.frontier.redis.connection import Argument
from shoal.frontier.redis.shard_runner import ShardRunner, checked
from shoal.frontier.redis.shards import Shard, shard_of
from shoal.model import Task

Grant = tuple[Argument, Argument, Argument, Argument]


async def ask_for_allowance(
    runner: ShardRunner, shards: Sequence[Shard], tasks: Sequence[Task]
) -> tuple[int, list[Grant]]:
    """How many of these tasks, each of another key, fit into the budget, the first ones first; and the grant of each
    shard, as put sends it. Zero tasks: the budget is used up for every client."""
    crawl = shards[0].crawl
    reports = [checked(answer, crawl) for answer in await runner.run([(shard, "reclaim", ()) for shard in shards])]
    args: list[Argument] = [len(shards)]
    for _, generation, accepted in reports:
        args += (generation, accepted)
    wants = [shard_of(task.lane, of=len(shards)) for task in tasks]
    _, served, kept, *grants = await runner.change_in(shards[0], "grant", *args, *wants)
    is_spent = int(served == 0)
    return served, [
        (generation, allowance, kept, is_spent) for generation, allowance in zip(grants[::2], grants[1::2], strict=True)
    ]
