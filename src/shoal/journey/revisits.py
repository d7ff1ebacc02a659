"""Visits of one page, again and again: what a visit gave, and when the next one is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from shoal.journey.harvest import Harvest
from shoal.journey.results import Finished
from shoal.model import VISITS, Dead, Done, Task, Visit
from shoal.policy.revisit_times import RevisitRule, after_failure, after_visit
from shoal.policy.verdicts import UNREACHED


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
