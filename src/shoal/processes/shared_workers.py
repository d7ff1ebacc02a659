"""Worker processes that work on several crawls at once: each crawl's share of them, and the number for all. Pure.

Each crawl sees the same processes at work, and the load of a whole process. Advice on each by itself would ask for the
same workers once per crawl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shoal.model import WorkerBeat
from shoal.processes.advice import Advice
from shoal.processes.crawl_survey import Survey
from shoal.processes.kind_advice import KindAdvice, shared_out
from shoal.processes.utilisation import whole_workers

Process = tuple[str, int]
SHARED_PARTS = 1_000


def with_parts(surveys: Sequence[Survey], before: Mapping[str, Survey]) -> list[Survey]:
    """The surveys, with the share of their process that workers had for each crawl since the surveys before."""
    weights: dict[Process, dict[str, float]] = {}
    for survey in surveys:
        former = before.get(survey.crawl.id)
        earlier = {one.beat.worker: one.beat for one in former.members} if former is not None else {}
        for member in survey.at_work:
            crawls = weights.setdefault(_process(member.beat), {})
            crawls[survey.crawl.id] = _done(earlier.get(member.beat.worker), member.beat)
    return [msgspec.structs.replace(survey, parts=_parts(survey, weights)) for survey in surveys]


def shared(advice: Mapping[str, Advice], surveys: Sequence[Survey]) -> dict[str, Advice]:
    """The advice, with the workers that several crawls want of the same processes as one number: it is shared out over
    these crawls in whole workers, so that the sum is right, and a crawl may have none of its own."""
    found = dict(advice)
    for kind, crawls in _sharing(surveys):
        asking = {
            name: one for name in crawls if (one := _of_kind(found[name], kind)) is not None and one.workers_wanted
        }
        if len(asking) < 2:
            continue
        need = max(sum(one.needed_cores for one in asking.values()), *(one.needed for one in asking.values()))
        number = whole_workers(need, at_work=max(one.workers for one in asking.values()))
        weights = {name: max(1, round(one.needed * SHARED_PARTS)) for name, one in asking.items()}
        for name, part in shared_out(number, weights).items():
            found[name] = _replaced(found[name], kind, part)
    return found


def _sharing(surveys: Sequence[Survey]) -> list[tuple[str, set[str]]]:
    """Kinds, and crawls whose workers at work do them in the same processes. Processes that share some crawls share
    all of them, however many there are between."""
    groups: list[tuple[str, set[str]]] = []
    found: dict[tuple[str, Process], set[str]] = {}
    for survey in surveys:
        for member in survey.at_work:
            for kind in member.beat.kinds:
                found.setdefault((kind, _process(member.beat)), set()).add(survey.crawl.id)
    for (kind, _), crawls in found.items():
        near = [one for one in groups if one[0] == kind and one[1] & crawls]
        groups = [one for one in groups if one not in near]
        groups.append((kind, crawls.union(*(one[1] for one in near))))
    return groups


def _parts(survey: Survey, weights: Mapping[Process, Mapping[str, float]]) -> dict[str, float]:
    parts = {}
    for member in survey.at_work:
        crawls = weights[_process(member.beat)]
        if len(crawls) > 1:
            total = sum(crawls.values())
            parts[member.beat.worker] = crawls[survey.crawl.id] / total if total else 1 / len(crawls)
    return parts


def _done(before: WorkerBeat | None, now: WorkerBeat) -> float:
    """What a worker has done for a crawl meanwhile: pages, as what they cost each is not known by crawl."""
    return max(0.0, now.pages - (before.pages if before is not None else 0))


def _process(beat: WorkerBeat) -> Process:
    return beat.machine or beat.host, beat.pid


def _of_kind(advice: Advice, kind: str) -> KindAdvice | None:
    return next((one for one in advice.kinds if one.kind == kind), None)


def _replaced(advice: Advice, kind: str, number: int) -> Advice:
    """The advice with so many workers of the kind; the lines say what the crawl would want by itself."""
    kinds = tuple(
        msgspec.structs.replace(one, workers_wanted=number) if one.kind == kind else one for one in advice.kinds
    )
    total = sum(one.workers_wanted for one in kinds)
    if total == advice.workers_wanted:
        return msgspec.structs.replace(advice, kinds=kinds)
    line = f"its workers work on other crawls as well: {total} of those that are worth running count for this one"
    return msgspec.structs.replace(advice, kinds=kinds, workers_wanted=total, lines=(*advice.lines, line))
