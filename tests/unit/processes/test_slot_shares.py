"""How crawls of one process share slots: a day of starts by numbers alone."""

from __future__ import annotations

from collections import Counter

import pytest

from shoal.worker.process import Claim, grants


class Simulated:
    """A process whose pages all take one round. Each crawl has a priority and always work."""

    def __init__(self, size: int, **priorities: int) -> None:
        self.size = size
        self.priorities = priorities
        self.held = dict.fromkeys(priorities, 0)
        self.served = dict.fromkeys(priorities, 0)
        self.wants = set(priorities)
        self.most = dict.fromkeys(priorities, size)
        self.starts = Counter[str]()
        self.since_lower = self.sequence = 0

    def grant(self) -> dict[str, int]:
        claims = [
            Claim(name, priority, self.held[name], self.served[name], name in self.wants, self.most[name])
            for name, priority in self.priorities.items()
        ]
        return grants(claims, size=self.size, since_lower=self.since_lower)

    def start(self, name: str) -> None:
        self.sequence += 1
        self.held[name] += 1
        self.served[name] = self.sequence
        self.starts[name] += 1
        is_highest = self.priorities[name] == max(self.priorities[one] for one in self.wants)
        self.since_lower = self.since_lower + 1 if is_highest else 0

    def fill(self) -> None:
        while any(given := self.grant().values()):
            del given
            name = next(name for name, number in self.grant().items() if number)
            self.start(name)

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.fill()
            assert sum(self.held.values()) <= self.size
            self.held = dict.fromkeys(self.held, 0)


@pytest.mark.parametrize("size", [10, 20, 100])
def test_the_higher_priority_has_nine_of_ten_slots(size: int) -> None:
    process = Simulated(size, news=5, archive=0)
    process.fill()
    assert process.held == {"news": size - size // 10, "archive": size // 10}


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_with_few_slots_the_lower_priority_has_one_of_ten_starts(size: int) -> None:
    process = Simulated(size, news=5, archive=0)
    process.run(1000 // size)
    assert process.starts["archive"] / process.starts.total() == pytest.approx(0.1, abs=0.01)


def test_crawls_of_lower_priorities_take_turns_at_their_tenth() -> None:
    process = Simulated(32, news=5, a=1, b=0, c=-1, d=0, e=0)
    process.run(50)
    assert process.starts["news"] == 50 * 29
    assert {process.starts[name] for name in "abcde"} == {30}


def test_crawls_of_one_priority_share_equally() -> None:
    process = Simulated(32, a=3, b=3, c=3)
    process.run(30)
    assert set(process.starts.values()) == {320}


def test_a_crawl_that_wants_no_more_leaves_its_slots_to_the_others() -> None:
    process = Simulated(32, news=5, archive=0)
    process.wants = {"archive"}
    process.held["news"] = 4
    assert process.grant() == {"archive": 28}


@pytest.mark.parametrize("priority", [5, 0, -5])
def test_what_a_crawl_may_not_have_at_once_is_for_the_others(priority: int) -> None:
    process = Simulated(32, courteous=priority, large=0, small=0)
    process.most |= {"courteous": 2, "small": 8}
    process.fill()
    assert process.held == {"courteous": 2, "large": 22, "small": 8}
    few = Simulated(6, courteous=priority, large=0)
    few.most["courteous"] = 2
    few.run(1)
    assert few.starts.total() == 6


def test_slots_that_are_taken_are_not_taken_away() -> None:
    process = Simulated(32, news=5, archive=0)
    process.held["archive"] = 32
    assert process.grant() == {"news": 0, "archive": 0}
    process.held["archive"] = 20
    assert process.grant() == {"news": 12, "archive": 0}


def test_lower_crawls_with_slow_pages_never_hold_more_than_their_tenth() -> None:
    process = Simulated(32, news=5, **{f"slow{number}": 0 for number in range(10)})
    for _ in range(50):
        process.fill()
        process.held["news"] = 0
        assert sum(process.held.values()) <= 3


@pytest.mark.parametrize("size", [2, 5, 9])
def test_with_few_slots_a_lower_crawl_with_slow_pages_holds_one_and_the_highest_the_others(size: int) -> None:
    process = Simulated(size, news=5, slow=0)
    process.run(10)
    before = process.starts["news"]
    for _ in range(50):
        process.held["news"] = 0
        process.fill()
        assert process.held["slow"] <= 1
    assert process.starts["news"] - before >= 50 * (size - 1)
