"""The slots that several workers of one process have in common."""

from __future__ import annotations

import asyncio

from shoal.model import Lease
from shoal.testing.fakes import task_for
from shoal.worker.process import WANTS_SECONDS, SharedSlots
from shoal.worker.retirement import Limits, Retirement
from shoal.worker.slots import Slots


class Process:
    """Workers of one process by the names of their crawls; they start leases and end them."""

    def __init__(self, size: int, *crawls: str, retirement: Retirement | None = None) -> None:
        self.now = 100.0
        self.common = SharedSlots(retirement=retirement, monotonic=lambda: self.now)
        self.in_hand: dict[str, dict[int, Lease]] = {crawl: {} for crawl in crawls}
        self.slots = {
            crawl: Slots(size, in_hand=self.in_hand[crawl], crawl=crawl, common=self.common) for crawl in crawls
        }
        self.tokens = 0

    def begin(self, crawl: str, number: int) -> list[int]:
        """The crawl takes so many slots; gives the tokens."""
        begun = []
        for _ in range(number):
            self.tokens += 1
            self.in_hand[crawl][self.tokens] = one = lease(self.tokens)
            self.slots[crawl].take(one)
            begun.append(self.tokens)
        return begun

    def end(self, crawl: str, tokens: list[int]) -> None:
        for token in tokens:
            del self.in_hand[crawl][token]
            self.slots[crawl].leave(token)


def lease(token: int) -> Lease:
    return Lease(crawl="c", task=task_for(f"https://a.test/{token}"), token=token)


async def test_a_lone_crawl_has_all_slots() -> None:
    process = Process(32, "a")
    assert process.slots["a"].room() == 32
    process.begin("a", 30)
    assert process.slots["a"].room() == 2
    assert not process.slots["a"].is_full


async def test_crawls_together_have_no_more_slots_than_one() -> None:
    process = Process(32, "a", "b")
    process.begin("a", 32)
    assert process.slots["b"].free == 32
    assert process.slots["b"].room() == 0
    assert process.slots["b"].is_full


async def test_the_slots_that_one_asks_leases_for_are_not_given_to_another() -> None:
    process = Process(32, "a", "b")
    with process.slots["a"].asking(30):
        assert process.slots["b"].room() == 2
    process.slots["b"].withdraw()
    assert process.slots["b"].room() == 32


async def test_a_crawl_of_higher_priority_gets_the_slots_of_the_lower_as_they_become_free() -> None:
    process = Process(32, "archive", "news")
    process.common.prioritise("news", 5)
    held = process.begin("archive", 32)
    while len(held) > 3:
        assert process.slots["news"].room() == 0
        process.end("archive", [held.pop()])
        assert process.slots["archive"].room() == 0
        assert process.slots["news"].room() == 1
        process.begin("news", 1)
    process.end("archive", [held.pop()])
    assert process.slots["news"].room() == 0
    assert process.slots["archive"].room() == 1


async def test_a_crawl_that_was_refused_is_woken_when_it_gets_a_slot() -> None:
    process = Process(4, "a", "b")
    tokens = process.begin("a", 4)
    assert process.slots["b"].room() == 0
    waiting = asyncio.create_task(process.slots["b"].until_free(30))
    await asyncio.sleep(0)
    process.end("a", tokens[:1])
    async with asyncio.timeout(10):
        await waiting
    assert process.slots["b"].room() == 1


async def test_a_changed_priority_holds_at_once() -> None:
    process = Process(20, "a", "b")
    tokens = process.begin("a", 20)
    assert process.slots["b"].room() == 0
    process.end("a", tokens[:12])
    assert process.slots["a"].room() == 2
    process.common.prioritise("b", 1)
    assert process.slots["a"].room() == 0
    assert process.slots["b"].room() == 12


async def test_a_crawl_that_has_fallen_silent_holds_nobody_back() -> None:
    process = Process(4, "a", "b")
    process.common.prioritise("b", 1)
    tokens = process.begin("a", 4)
    assert process.slots["b"].room() == 0
    process.end("a", tokens[:2])
    assert process.slots["a"].room() == 0
    process.now += WANTS_SECONDS
    assert process.slots["a"].room() == 2


async def test_a_worker_that_has_ended_gives_its_slots_back() -> None:
    process = Process(4, "a", "b")
    process.begin("a", 4)
    process.slots["a"].quit()
    assert process.slots["b"].room() == 4


async def test_no_more_pages_are_leased_than_a_process_may_still_do() -> None:
    retirement = Retirement(Limits(pages=10), in_hand=lambda: sum(map(len, process.in_hand.values())))
    process = Process(32, "a", "b", retirement=retirement)
    process.begin("a", 4)
    with process.slots["a"].asking(3):
        assert process.slots["b"].room() == 3
    process.begin("b", 6)
    assert process.slots["a"].room() == 0
    # It may do no more pages: that is no lack of slots.
    assert not process.slots["a"].is_full
