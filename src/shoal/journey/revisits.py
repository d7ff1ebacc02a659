"""The setting `revisit`: plans the next visit of a page, after a fixed time or by how often the page changes."""

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

# The weight of older pairs of visits falls by this factor at each visit: about ten pairs count.
MEMORY: Final = 0.9
# A plan is at most so many times longer or shorter than the last one: a few visits may mislead.
STEP: Final = 2.0


class RevisitRule(NamedTuple):
    """Seconds between visits of a page; 0: one visit. With a `longest`, the time adapts to the page, within these
    bounds."""

    seconds: float = 0.0
    shortest: float = 0.0
    longest: float = 0.0

    @classmethod
    def of(cls, settings: Settings) -> RevisitRule:
        """The rule of a crawl's settings."""
        return cls(parse_revisit(settings.revisit), *parse_revisit_bounds(settings.revisit_bounds))

    def first(self, visit: Visit | None) -> float:
        """Seconds between the first two visits: those of the request, else the rule's."""
        return self.seconds if visit is None or visit.asked is None else visit.asked

    def follows(self, visit: Visit | None) -> bool:
        """Whether the time adapts to the page. A time that the request names is fixed."""
        return self.longest > 0 and (visit is None or visit.asked is None)


def after_visit(visit: Visit | None, *, at: float, harvest: int, rule: RevisitRule) -> Visit:
    """The record of a page's visits after one more visit, with `planned` seconds until the next.

    harvest: the fingerprint of the page's items and links."""
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
    """Seconds until the next visit of a page that could not be reached: as planned for this one."""
    return visit.planned or rule.first(visit)


def change_rate(visit: Visit) -> float:
    """Estimated changes per second, if the page changes at random (a Poisson process).

    A pair of visits shows whether the page changed between them, not how often. With X changed pairs of n, the rate is
    -ln((n - X + 0.5) / (n + 0.5)) per mean time between visits. The 0.5 keep the logarithm finite when every pair
    differs, and remove most of the bias of small n."""
    number = visit.compared
    if not visit.changes or not visit.seconds:
        return 0.0
    unchanged = (number - visit.changes + 0.5) / (number + 0.5)
    return -math.log(unchanged) / (visit.seconds / number)


def _planned(visit: Visit, rule: RevisitRule) -> float:
    """Seconds until the next visit: the page has then changed with a probability of one half."""
    if not rule.follows(visit) or not visit.compared:
        return rule.first(visit)
    last = visit.planned or rule.first(visit)
    rate = change_rate(visit)
    half_life = math.log(2) / rate if rate else math.inf
    stepped = min(max(half_life, last / STEP), last * STEP)
    return min(max(stepped, rule.shortest), rule.longest)


class Revisits:
    """Plans the next visit when a visit ends, for pages that are visited again."""

    def __init__(self, rule: RevisitRule, *, clock: Callable[[], float]) -> None:
        self._rule = rule
        self._clock = clock

    def concern(self, task: Task) -> bool:
        """Whether the page of the task is visited more than once."""
        return self._rule.first(task.visit) > 0

    def after(self, finished: Finished) -> Finished:
        """The result with the next visit. A dead letter has none until it is requeued."""
        result = finished.result
        if not isinstance(result, Done) or result.again is not None or finished.unstorable:
            return finished
        # A page that is gone or redirects has no harvest: the outcome stands for it, so it counts as a change.
        harvest = finished.harvest or _hash(result.outcome.encode())
        task = result.lease.task
        visit = after_visit(task.visit, at=self._clock(), harvest=harvest, rule=self._rule)
        return _again(finished, result, visit=visit, after=visit.planned)

    def spared(self, finished: Finished) -> Finished:
        """The result, but no dead letter if the page was reached at an earlier visit: it is visited again."""
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
    """A hash of the page's items and links, in any order. Not of its bytes: these hold clocks and session ids."""
    digest = hashlib.blake2b(digest_size=8)
    for item in sorted((item.key, item.data) for item in harvest.items):
        digest.update(msgspec.msgpack.encode(item))
    digest.update(str(harvest.found.links).encode())
    return int.from_bytes(digest.digest(), "big") >> 1 or 1


def _hash(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1 or 1


def _again(finished: Finished, done: Done, *, visit: Visit, after: float) -> Finished:
    again = msgspec.structs.replace(done.lease.task, visit=visit, delay=0.0)
    notes = {**done.notes, VISITS: 1}
    return msgspec.structs.replace(
        finished, result=msgspec.structs.replace(done, again=again, again_in=after, notes=notes)
    )
