"""The relay that other tests break lines with: each of its verbs does to a client what it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shoal.testing.servers.line_relay import NOISE, LineRelay, line_relay
from shoal.testing.waiting import eventually, loop_turns


@asynccontextmanager
async def echo_behind_relay() -> AsyncIterator[LineRelay]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with line_relay(server.sockets[0].getsockname()[1]) as relay:
        yield relay
    server.close()


@asynccontextmanager
async def connected(relay: LineRelay) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.url_port)
    writer.write(b"hello\n")
    assert await reader.readline() == b"hello\n"
    yield reader, writer
    writer.close()


async def test_a_reset_line_is_reset_for_the_client_and_a_new_one_works() -> None:
    async with echo_behind_relay() as relay:
        async with connected(relay) as (reader, _):
            relay.reset()
            with pytest.raises(ConnectionResetError):
                await reader.read()
        async with connected(relay):
            assert relay.accepted == 2


async def test_a_line_that_was_hung_up_ends_in_order() -> None:
    async with echo_behind_relay() as relay, connected(relay) as (reader, _):
        relay.hang_up()
        assert await reader.read() == b""


async def test_a_cut_relay_refuses_until_it_is_mended() -> None:
    async with echo_behind_relay() as relay:
        port = relay.url_port
        relay.cut()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        await relay.mend()
        assert relay.url_port == port
        async with connected(relay):
            pass


async def test_a_stalled_relay_passes_nothing_on_and_then_everything() -> None:
    async with echo_behind_relay() as relay, connected(relay) as (reader, writer):
        relay.stall(3600)
        writer.write(b"later\n")
        answer = asyncio.ensure_future(reader.readline())
        await loop_turns(1000)
        assert not answer.done()
        relay.stall(0)
        assert await answer == b"later\n"


async def test_a_garbled_line_gives_the_client_bytes_that_nobody_sent() -> None:
    async with echo_behind_relay() as relay, connected(relay) as (reader, _):
        relay.garble()
        assert await reader.readexactly(len(NOISE)) == NOISE


async def test_an_answer_that_is_broken_off_ends_in_the_middle() -> None:
    async with echo_behind_relay() as relay, connected(relay) as (reader, writer):
        relay.break_off(after=3)
        writer.write(b"answer\n")
        assert await reader.read() == b"ans"


async def test_an_ended_client_frees_its_line() -> None:
    async with echo_behind_relay() as relay:
        async with connected(relay):
            assert relay.lines == 1
        await eventually(lambda: relay.lines == 0)
