"""What every sink promises, one test per promise. Subclass `SinkContract` and give it a fixture."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol, cast

import msgspec
import pytest

from shoal.errors import ServerUnreachable, ShoalError, UsageError
from shoal.sinks import open_sink
from shoal.sinks.base import Message, Sink
from shoal.sinks.pump import OpenSink, SinkPump
from shoal.sinks.urls import parse_sink
from shoal.store.base import Change, Outbox, Outgoing
from shoal.testing.servers.line_relay import LineRelay
from shoal.testing.waiting import eventually

# Signs the messages of webhooks in these tests.
SECRET: Final = "s3cr3t-of-the-hook"
# Stands once in every message, also where the line escapes quotes.
WORD: Final = b"a.test"
# Lines that a receiver takes before it closes, where a test has one that does; changes that wait for it, and the
# highest number of deliveries that may be tried for them.
FEW: Final = 3
CHANGES: Final = 40
MOST_TRIES: Final = 120
PAUSE_SECONDS: Final = 0.02
ODD_ITEMS: Final[Sequence[dict[str, Any]]] = (
    {"text": 'Émile 🐟\u2028\n\r\t"\\'},
    {"text": ""},
    {"text": "x" * 100_000},
    {"a": [None, 1.5, {}]},
)


def message(number: int, *, version: int = 1, **fields: Any) -> Message:
    """A message about the item with this number."""
    given: dict[str, Any] = {
        "id": f"books/{number}/{version}",
        "spider": "books",
        "key": str(number),
        "version": version,
        "change": "new" if version == 1 else "changed",
        "at": 100.5,
        "url": f"https://a.test/{number}",
        "crawl": "books-1",
        "item": msgspec.Raw(json.dumps({"n": number}).encode()),
    }
    return Message(**(given | fields))


def check_delivery(received: Iterable[dict[str, Any]], *, expected: dict[str, int]) -> None:
    """Every change came at least once, and the changes of each item in order: a repeat begins at an earlier version and
    runs through again. `expected` has the last version of each key."""
    seen: dict[str, int] = {}
    last: dict[str, int] = {}
    for one in received:
        key, version = one["key"], one["version"]
        highest = seen.get(key, 0)
        assert version <= highest + 1, f"{key}: version {version} came before {highest + 1}"
        assert version <= highest or version == last.get(key, 0) + 1
        seen[key], last[key] = max(highest, version), version
        assert one["id"] == f"{one['spider']}/{key}/{version}"
    assert seen == expected


def opened(url: str) -> Sink:
    return open_sink(parse_sink(url), environ={"SHOAL_WEBHOOK_SECRET": SECRET})


class Receiver(Protocol):
    """A sink's other end. `url` leads to it, with a password if this kind can have one; `refused` is a URL that its
    server refuses until somebody mends something."""

    url: str
    refused: str
    secrets: tuple[str, ...]

    async def received(self) -> list[dict[str, Any]]:
        """Every message that has arrived so far, in the order of arrival."""

    def away(self) -> AbstractAsyncContextManager[None]:
        """For as long as the block runs, no delivery succeeds."""

    def closing(self, *, after: int) -> AbstractAsyncContextManager[None]:
        """For as long as the block runs, the receiver closes each connection after so many lines, and accepts new
        ones."""


class RelayedReceiver:
    """A `Receiver` behind a relay. A subclass reads what arrived at the server, whose port `at` puts into a URL."""

    secrets: tuple[str, ...] = ()

    def __init__(self, relay: LineRelay, *, url: str, refused: str) -> None:
        self._relay = relay
        self.url, self.refused = (one.replace("{port}", str(relay.url_port)) for one in (url, refused))

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        self._relay.cut()
        yield
        await self._relay.mend()

    @asynccontextmanager
    async def closing(self, *, after: int) -> AsyncIterator[None]:
        self._relay.close_after(after, WORD)
        yield
        self._relay.close_after(None, WORD)


class WaitingChanges:
    """An `Outbox` with the changes of one sink, for a `SinkPump`: in memory, so that no test of a full disk ends it."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._waiting = [
            Outgoing(
                position=position,
                key=one.key,
                version=one.version,
                change=cast("Change", one.change),
                at=one.at,
                url=one.url,
                crawl=one.crawl,
                data=bytes(one.item),
            )
            for position, one in enumerate(messages)
        ]

    def __len__(self) -> int:
        return len(self._waiting)

    async def hold(self, sink: int, holder: str, *, seconds: float) -> bool:
        return True

    async def read(self, sink: int, *, limit: int) -> list[Outgoing]:
        return self._waiting[:limit]

    async def passed(self, sink: int, changes: Sequence[Outgoing]) -> None:
        assert self._waiting[: len(changes)] == list(changes)
        del self._waiting[: len(changes)]

    async def failed(self, sink: int, why: str) -> None:
        """Nobody reads it."""


def pump_of(sink: Sink, waiting: WaitingChanges) -> SinkPump:
    # What it says is not printed: the capture of pytest is a file, which cannot grow on a full disk.
    opened, said = OpenSink(1, "books", "the receiver", sink), list[str]()
    return SinkPump(opened, outbox=cast("Outbox", waiting), say=said.append)


class SinkContract:
    """The promises of `Sink`, and of a `SinkPump` that sends to it.

    A subclass names its `backend` as shoal.backends does, and has the fixture `receiver`, which is empty at first."""

    backend = ""

    @pytest.fixture
    async def sink(self, receiver: Receiver) -> AsyncIterator[Sink]:
        sink = opened(receiver.url)
        yield sink
        await sink.close()

    async def expect(self, receiver: Receiver, expected: dict[str, int]) -> None:
        """Every change arrives at least once, and the changes of each item in order."""

        async def are_there() -> bool:
            arrived = {(one["key"], one["version"]) for one in await receiver.received()}
            return arrived >= set(expected.items())

        await eventually(are_there)
        check_delivery(await receiver.received(), expected=expected)

    async def test_a_check_sends_nothing_and_may_be_repeated(self, receiver: Receiver, sink: Sink) -> None:
        await sink.check()
        await sink.check()
        assert await receiver.received() == []
        await sink.deliver([message(1)])
        await sink.check()
        await self.expect(receiver, {"1": 1})

    async def test_a_message_arrives_with_all_its_fields(self, receiver: Receiver, sink: Sink) -> None:
        await sink.deliver([message(7, version=2, change="gone", at=1767225600.25)])
        await eventually(receiver.received)
        assert await receiver.received() == [
            {
                "id": "books/7/2", "spider": "books", "key": "7", "version": 2, "change": "gone", "at": 1767225600.25,
                "url": "https://a.test/7", "crawl": "books-1", "item": {"n": 7},
            }
        ]  # fmt: skip

    async def test_a_batch_of_the_highest_number_is_delivered_whole(self, receiver: Receiver, sink: Sink) -> None:
        await sink.deliver([message(number) for number in range(sink.most)])
        await self.expect(receiver, {str(number): 1 for number in range(sink.most)})

    async def test_the_changes_of_an_item_arrive_in_their_order(self, receiver: Receiver, sink: Sink) -> None:
        versions = [message(number, version=version) for version in (1, 2, 3) for number in range(4)]
        await sink.deliver(versions)
        await sink.deliver([message(1, version=4), message(1, version=5)])
        await self.expect(receiver, {"0": 3, "1": 5, "2": 3, "3": 3})

    async def test_odd_texts_arrive_as_they_are(self, receiver: Receiver, sink: Sink) -> None:
        for number, item in enumerate(ODD_ITEMS):
            raw = msgspec.Raw(json.dumps(item, ensure_ascii=False, indent=1).encode())
            await sink.deliver([message(number, item=raw)])
        await self.expect(receiver, {str(number): 1 for number in range(len(ODD_ITEMS))})
        assert [one["item"] for one in await receiver.received()] == list(ODD_ITEMS)

    async def test_a_key_may_be_long_and_of_any_characters(self, receiver: Receiver, sink: Sink) -> None:
        keys = ("k" * 2000, "grüße\n🐟", "a b/c?d#e")
        await sink.deliver([message(1, key=key, id=f"books/{key}/1") for key in keys])
        await self.expect(receiver, dict.fromkeys(keys, 1))

    async def test_a_batch_that_was_delivered_may_be_delivered_again(self, receiver: Receiver, sink: Sink) -> None:
        batch = [message(number, version=version) for version in (1, 2) for number in range(3)]
        await sink.deliver(batch)
        await sink.deliver(batch)
        await self.expect(receiver, {"0": 2, "1": 2, "2": 2})

    async def test_an_outage_raises_and_the_same_batch_succeeds_after_it(self, receiver: Receiver, sink: Sink) -> None:
        await sink.deliver([message(1)])
        async with receiver.away():
            with pytest.raises(ServerUnreachable) as caught:
                await sink.deliver([message(1, version=2), message(2)])
        self.check_line(caught.value, receiver)
        await sink.deliver([message(1, version=2), message(2)])
        await self.expect(receiver, {"1": 2, "2": 1})

    async def test_a_place_that_refuses_is_named_in_one_line(self, receiver: Receiver) -> None:
        sink = opened(receiver.refused)
        with pytest.raises(UsageError) as caught:
            await sink.deliver([message(1)])
        self.check_line(caught.value, receiver)
        await sink.close()
        assert await receiver.received() == []

    def check_line(self, error: ShoalError, receiver: Receiver) -> None:
        """One line without secrets."""
        assert "\n" not in str(error)
        assert [secret for secret in receiver.secrets if secret in str(error)] == []

    async def test_closing_again_is_harmless(self, receiver: Receiver) -> None:
        unused, used = opened(receiver.url), opened(receiver.url)
        await used.deliver([message(1)])
        for sink in (unused, used, used, unused):
            await sink.close()
        await self.expect(receiver, {"1": 1})

    async def test_a_sink_closes_while_its_receiver_is_away(self, receiver: Receiver) -> None:
        sink = opened(receiver.url)
        await sink.deliver([message(1)])
        async with receiver.away():
            await sink.close()

    async def test_a_receiver_that_closes_after_a_few_lines_gets_everything(
        self, receiver: Receiver, sink: Sink
    ) -> None:
        """Also where a batch arrives whole or not at all: a batch of the same size would fail for ever."""
        versions = [message(number, version=version) for version in (1, 2) for number in range(CHANGES // 2)]
        waiting = WaitingChanges(versions)
        pump = pump_of(sink, waiting)
        async with receiver.closing(after=FEW):
            for _ in range(MOST_TRIES):
                if not waiting:
                    break
                if await pump.send_batch() is None:
                    await asyncio.sleep(PAUSE_SECONDS)
        assert (len(waiting), pump.sent) == (0, CHANGES)
        await self.expect(receiver, {str(number): 2 for number in range(CHANGES // 2)})

    async def test_after_a_receiver_that_closed_the_pump_sends_whole_batches_again(
        self, receiver: Receiver, sink: Sink
    ) -> None:
        waiting = WaitingChanges([message(number) for number in range(CHANGES)])
        pump = pump_of(sink, waiting)
        async with receiver.away():
            for _ in range(4):
                assert await pump.send_batch() is None
        assert [await pump.send_batch() for _ in range(5)] == [1, 2, 4, 8, 16]
        assert await pump.send_batch() == len(range(31, CHANGES))
        await self.expect(receiver, {str(number): 1 for number in range(CHANGES)})
