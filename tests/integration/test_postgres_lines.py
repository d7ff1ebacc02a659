"""A line to PostgreSQL that breaks is waited for, whatever broke it: no error of the driver reaches a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial

import pytest
import uvloop

from shoal.store.postgres.store import PostgresStore
from shoal.testing.contract.store.rows import fetch, item
from shoal.testing.servers.line_relay import LineRelay, line_relay
from shoal.testing.servers.postgres_server import PostgresServer
from shoal.worker.outages import until_reachable

ROUNDS = 6
Run = Callable[[Coroutine[None, None, None]], None]
BREAKS: dict[str, Callable[[LineRelay], None]] = {
    "reset": LineRelay.reset,
    "hung up": LineRelay.hang_up,
    "answer broken off": LineRelay.break_off,
}
KILL = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'shoal' AND datname = '{}'"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a test under either loop: they raise different errors for a line that is lost."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


@pytest.mark.parametrize("how", BREAKS)
def test_a_line_that_breaks_while_idle_or_in_use_is_waited_for(
    how: str, run: Run, postgres: PostgresServer, database: str
) -> None:
    async def scenario() -> None:
        async with line_relay(postgres.port) as relay:
            url = postgres.url(database).replace(f":{postgres.port}/", f":{relay.url_port}/")
            store = await PostgresStore.open(url)
            for number in range(ROUNDS):
                BREAKS[how](relay)
                write = partial(store.write, [item(str(number))], [fetch(number)])
                await until_reachable(write, say=print)
            assert await until_reachable(lambda: store.count_by_crawl("books"), say=print) == {"c1": ROUNDS}
            await store.close()

    run(scenario())


def test_a_backend_that_was_killed_is_waited_for(run: Run, postgres: PostgresServer, database: str) -> None:
    async def scenario() -> None:
        store = await PostgresStore.open(postgres.url(database))
        for number in range(ROUNDS):
            write = partial(store.write, [item(str(number))], [fetch(number)])
            writing = asyncio.ensure_future(until_reachable(write, say=print))
            await asyncio.to_thread(postgres.call, KILL.format(database))
            await writing
        assert await until_reachable(lambda: store.count_by_crawl("books"), say=print) == {"c1": ROUNDS}
        await store.close()

    run(scenario())
