"""When a page is visited again: after a fixed time, or after one that follows how often the page changes.

Visits of one page, again and again: what a visit gave, and when the next one is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from shoal.journey.harvest import Harvest
from shoal.journey.results import Finished
from shoal.model import VISITS, Dead, Done, Task, Visit
from shoal.policy.failures import UNREACHED
from shoal.settings.table import Settings
from shoal.settings.values import parse_revisit, parse_revisit_bounds

# What a pair of visits counts after each later one: pages change their habits, and some ten pairs tell of them.
MEMORY: Final = 0.9
# How much longer or shorter than the last plan a plan may be: a few visits may mislead.
STEP: Final = 2.0


class RevisitRule(NamedTuple):
    """The time between the visits of a page, in seconds; 0: one visit. With a `longest`, it follows the page, within
    these bounds."""

    seconds: float = 0.0
    shortest: float = 0.0
    longest: float = 0.0

    @classmethod
    def of(cls, settings: Settings) -> RevisitRule:
        """The rule that the settings of a crawl give."""
        return cls(parse_revisit(settings.revisit), *parse_revisit_bounds(settings.revisit_bounds))

    def first(self, visit: Visit | None) -> float:
        """The time between the first two visits: as the request of the page has it, else the rule's."""
        return self.seconds if visit is None or visit.asked is None else visit.asked

    def follows(self, visit: Visit | None) -> bool:
        """Whether the time follows the page. One that a request names itself is kept as it is."""
        return self.longest > 0 and (visit is None or visit.asked is None)


def after_visit(visit: Visit | None, *, at: float, harvest: int, rule: RevisitRule) -> Visit:
    """What is known of the visits of a page after one that gave what `harvest` is the fingerprint of.

    `planned` of it is the time until the next visit."""
    before = visit or Visit()
    known = msgspec.structs.replace(before, visits=before.visits + 1, at=at, harvest=harvest)
    if before.visits and at > before.at:
        known = msgspec.structs.replace(
            known,
            compared=before.compared * MEMORY + 1,
            changes=before.changes * MEMORY + (harvest != before.harvest),
            seconds=before.seconds * MEMORY + (at - before.at),
        )
    return msgspec.structs.replace(known, planned=_planned(known, rule))


def after_failure(visit: Visit, *, rule: RevisitRule) -> float:
    """The time until the next visit of a page that could not be reached now: as was planned for this one."""
    return visit.planned or rule.first(visit)


def change_rate(visit: Visit) -> float:
    """How often the page changes, in changes per second: of a page that changes at random, seen at these visits only.

    A pair of visits tells whether the page changed between them, not how often: of n pairs with X changes, the mean
    time apart, that is -ln((n - X + 0.5) / (n + 0.5)) changes per mean time. The halves keep the logarithm finite when
    every pair differs, and take out most of the error of small n."""
    number = visit.compared
    if not visit.changes or not visit.seconds:
        return 0.0
    unchanged = (number - visit.changes + 0.5) / (number + 0.5)
    return -math.log(unchanged) / (visit.seconds / number)


def _planned(visit: Visit, rule: RevisitRule) -> float:
    """The time until the next visit: after it, the page has changed with a chance of one half."""
    if not rule.follows(visit) or not visit.compared:
        return rule.first(visit)
    last = visit.planned or rule.first(visit)
    rate = change_rate(visit)
    wanted = math.log(2) / rate if rate else math.inf
    stepped = min(max(wanted, last / STEP), last * STEP)
    return min(max(stepped, rule.shortest), rule.longest)


class Revisits:
    """Turns the end of a visit into the wait for the next one, where the page is visited again."""

    def __init__(self, rule: RevisitRule, *, clock: Callable[[], float]) -> None:
        self._rule = rule
        self._clock = clock

    def concern(self, task: Task) -> bool:
        """Whether the page of the task is visited more than once."""
        return self._rule.first(task.visit) > 0

    def after(self, finished: Finished) -> Finished:
        """The same, with the next visit. A page that ends as a dead letter has none until it is put back."""
        result = finished.result
        if not isinstance(result, Done) or result.again is not None or finished.unstorable:
            return finished
        # A page that is not there, or leads elsewhere, has given nothing: that counts as a change, too.
        harvest = finished.harvest or _number(result.outcome.encode())
        task = result.lease.task
        visit = after_visit(task.visit, at=self._clock(), harvest=harvest, rule=self._rule)
        return _again(finished, result, visit=visit, after=visit.planned)

    def spared(self, finished: Finished) -> Finished:
        """The same, but a page that was reached at an earlier visit is no dead letter for missing one."""
        result = finished.result
        visit = result.lease.task.visit
        if not isinstance(result, Dead) or visit is None or not visit.visits or not self._rule.first(visit):
            return finished
        outcome = result.reason.partition(":")[0]
        done = Done(
            lease=result.lease,
            outcome=outcome,
            lane=result.lane,
            exit=result.exit,
            notes={**result.notes, UNREACHED: 1},
        )
        return _again(finished, done, visit=visit, after=after_failure(visit, rule=self._rule))


def is_visited(task: Task) -> bool:
    """Whether this is not the first visit of the page."""
    return task.visit is not None and task.visit.visits > 0


def fingerprint(harvest: Harvest) -> int:
    """What tells two visits of a page apart: its items and its links, in any order. Not its bytes: pages show the time
    of day, and numbers drawn for one visitor."""
    digest = hashlib.blake2b(digest_size=8)
    for item in sorted((item.key, item.data) for item in harvest.items):
        digest.update(msgspec.msgpack.encode(item))
    digest.update(str(harvest.found.links).encode())
    return int.from_bytes(digest.digest(), "big") >> 1 or 1


def _number(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1 or 1


def _again(finished: Finished, done: Done, *, visit: Visit, after: float) -> Finished:
    again = msgspec.structs.replace(done.lease.task, visit=visit, delay=0.0)
    notes = {**done.notes, VISITS: 1}
    return msgspec.structs.replace(
        finished, result=msgspec.structs.replace(done, again=again, again_in=after, notes=notes)
    )
