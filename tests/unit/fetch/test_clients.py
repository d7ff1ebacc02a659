"""Clients in batches: which origins share one, whose connections are closed first."""

from __future__ import annotations

import asyncio
import errno

import pytest

from shoal.fetch.clients import BATCH_SECONDS, KEEP_ALIVE_SECONDS, MAX_BATCHES, Batch, Clients, Tier
from shoal.fetch.descriptors import MOST_IDLE
from shoal.settings.table import Settings
from shoal.testing.clock import FakeClock
from shoal.testing.few_files import few_files


class Kept:
    """Clients, and the origins of those that were dropped."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.dropped: list[str] = []
        self.clients = Clients(Settings(), clock=self.clock, trusted_roots=None, dropped=self._dropped)

    def _dropped(self, batch: Batch) -> None:
        self.dropped += batch.origins

    def visit(self, *names: str) -> list[Batch]:
        return [self.clients.for_plain(f"http://{name}") for name in names]

    async def visit_secure(self, *pins: tuple[str, str]) -> list[Batch]:
        wanted = (self.clients.for_secure(f"https://{name}", {name.partition(":")[0]: at}) for name, at in pins)
        return list(await asyncio.gather(*wanted))


def test_hosts_with_plain_http_share_clients() -> None:
    kept = Kept()
    batches = kept.visit(*(f"{number}.test" for number in range(MOST_IDLE // 2)))
    assert len({id(batch.client) for batch in batches}) < 10
    assert kept.dropped == []


def test_no_more_origins_are_kept_than_there_may_be_connections() -> None:
    kept = Kept()
    names = [f"{number}.test" for number in range(4 * MOST_IDLE)]
    batches = kept.visit(*names)
    left = {origin for batch in batches if batch.is_kept for origin in batch.origins}
    assert len(left) <= MOST_IDLE
    assert left.isdisjoint(kept.dropped)
    # The last visited are kept, the first go.
    assert f"http://{names[-1]}" in left
    assert kept.dropped == [f"http://{name}" for name in names[: len(kept.dropped)]]


def test_a_host_that_came_back_outlives_a_stream_of_hosts_that_come_once() -> None:
    kept = Kept()
    [first] = kept.visit("steady.test")
    kept.visit(*(f"{number}.test" for number in range(MOST_IDLE)))
    assert not first.is_kept
    [again] = kept.visit("steady.test")
    kept.visit(*(f"other-{number}.test" for number in range(4 * MOST_IDLE)))
    assert again.is_kept


@pytest.mark.parametrize("seconds", [KEEP_ALIVE_SECONDS + 1, BATCH_SECONDS + 1])
def test_clients_that_are_idle_or_old_are_dropped(seconds: float) -> None:
    kept = Kept()
    [batch] = kept.visit("a.test")
    batch.expires = kept.clock() + (BATCH_SECONDS * 2 if seconds > BATCH_SECONDS else 0)
    kept.clock.advance(seconds - 2)
    kept.clients.drop_idle()
    assert batch.is_kept
    kept.clock.advance(2)
    kept.clients.drop_idle()
    assert not batch.is_kept
    assert kept.dropped == ["http://a.test"]


async def test_hosts_with_tls_that_come_at_once_share_a_client() -> None:
    kept = Kept()
    names = [(f"{number}.test", f"10.0.0.{number}") for number in range(20)]
    batches = await kept.visit_secure(*names)
    # The first need not wait for others; these share the second.
    assert len({id(batch.client) for batch in batches}) == 2
    assert sorted(len(set(batch.origins)) for batch in (batches[0], batches[-1])) == [1, 19]


async def test_a_name_with_two_addresses_gets_a_client_for_each() -> None:
    kept = Kept()
    await kept.visit_secure(("first.test", "10.0.0.9"))
    one, two, same = await kept.visit_secure(("a.test", "10.0.0.1"), ("a.test:444", "10.0.0.2"), ("b.test", "10.0.0.3"))
    assert one.client is not two.client
    assert one.client is same.client


def test_clients_are_few_however_few_origins_each_has() -> None:
    [batch] = Kept().visit("a.test")
    tier = Tier(most=10 * MAX_BATCHES)
    for _ in range(MAX_BATCHES):
        tier.batches.append(Batch(batch.client, made=0.0))
        tier.count()
    assert not tier.is_over
    tier.batches.append(Batch(batch.client, made=0.0))
    assert tier.is_over


async def test_a_request_that_is_cancelled_does_not_cost_others_their_client() -> None:
    kept = Kept()
    await kept.visit_secure(("first.test", "10.0.0.9"))
    impatient = asyncio.create_task(kept.clients.for_secure("https://a.test", {"a.test": "10.0.0.1"}))
    patient = asyncio.create_task(kept.clients.for_secure("https://b.test", {"b.test": "10.0.0.2"}))
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient).is_kept
    assert impatient.cancelled()


def test_a_client_for_plain_http_takes_no_descriptor() -> None:
    kept = Kept()
    with few_files():
        batches = kept.visit(*(f"{number}.test" for number in range(MOST_IDLE)))
    assert len({id(batch.client) for batch in batches}) > 1


@pytest.mark.parametrize("free", [0, 1, 2])
async def test_a_client_that_may_have_read_only_some_certificates_is_not_used(free: int) -> None:
    kept = Kept()
    with few_files(free=free), pytest.raises(OSError, match="no client could be made") as raised:
        await kept.visit_secure(("a.test", "10.0.0.1"))
    assert raised.value.errno == errno.EMFILE
    [batch] = await kept.visit_secure(("a.test", "10.0.0.1"))
    assert batch.is_kept


async def test_closing_gives_up_a_client_that_is_being_built() -> None:
    kept = Kept()
    await kept.visit_secure(("first.test", "10.0.0.9"))
    waiting = asyncio.create_task(kept.clients.for_secure("https://a.test", {"a.test": "10.0.0.1"}))
    await asyncio.sleep(0)
    assert kept.clients.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
