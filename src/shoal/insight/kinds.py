"""How many workers of each kind are worth running. Pure.

Workers that do the same kinds form a group with its own cores and slots; hosts' pace, exits, network and store are
those of the whole crawl. The workers that a group needs are divided among its kinds by waiting tasks, so that the sum
over kinds is the number for the crawl."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from shoal.insight.survey import Survey, measured
from shoal.insight.utilisation import (
    SATURATED,
    Need,
    Shares,
    growing,
    hardly_waits,
    in_hand,
    is_too_short,
    needed,
    shares_of,
    whole_workers,
)
from shoal.model import HTTP
from shoal.text.errors import several
from shoal.worker.workers import Member, Presence

NONE: Final = Need(0.0, 0.0)
ONE: Final = Need(1.0, 1.0)
# One worker with hardly anything to do.
HARDLY_ONE: Final = Need(0.01, 0.01)


class KindAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of a crawl's tasks: how many wait, how many workers at work do them, and how many are worth running. A
    worker that does several kinds counts as one of each in `workers`, and once in the sum of `workers_wanted`.
    `bound`: what limits the workers, "cpu" or "slots". `needed` is `workers_wanted` before rounding, `needed_cores` the
    number that the CPU alone would need."""

    kind: str
    waiting: int
    workers: int
    workers_wanted: int
    bound: str = ""
    needed: float = 0.0
    needed_cores: float = 0.0


def has_several_kinds(survey: Survey) -> bool:
    """Whether the tasks have several kinds, or some workers do not do the only one."""
    return bool(survey.progress.kinds) or any(HTTP not in member.beat.kinds for member in survey.at_work)


def kinds_at_rest(survey: Survey) -> tuple[KindAdvice, ...]:
    """Each kind with 0 workers wanted. A crawl without kinds of its own has the kind http."""
    waiting = survey.progress.kinds or {HTTP: survey.progress.queued + survey.progress.delayed}
    kinds = [member.beat.kinds for member in survey.at_work]
    return tuple(
        KindAdvice(kind=kind, waiting=tasks, workers=sum(kind in done for done in kinds), workers_wanted=0)
        for kind, tasks in waiting.items()
    )


def advise_kinds(before: Survey, now: Survey, *, shares: Shares) -> tuple[KindAdvice, ...]:
    """Advice on each kind of a crawl with work left; `shares` are those of the whole crawl."""
    kinds = {one.kind: one for one in kinds_at_rest(now)}
    found = {name: with_need(one, ONE if one.waiting and not one.workers else NONE) for name, one in kinds.items()}
    for names, members in _groups(now, kinds).items():
        waiting = {name: kinds[name].waiting for name in names}
        need, bound = _group_need(before, now, members, waiting=sum(waiting.values()), shares=shares)
        number = whole_workers(need.all_of_it, at_work=len(members)) if need != NONE else 0
        for name, part in shared_out(number, waiting).items():
            found[name] = _with_part(found[name], part, need=need, share=part / number if number else 0.0, bound=bound)
    if not any(one.workers_wanted for one in found.values()):
        # Only leases of lost workers are left: a worker of any kind reclaims them.
        return one_of_usual_kind(now)
    return tuple(found.values())


def with_need(one: KindAdvice, need: Need, *, at_work: int = 0) -> KindAdvice:
    """The kind with as many workers wanted as it needs."""
    number = whole_workers(need.all_of_it, at_work=at_work) if need != NONE else 0
    return msgspec.structs.replace(one, workers_wanted=number, needed=need.all_of_it, needed_cores=need.cores)


def _with_part(one: KindAdvice, number: int, *, need: Need, share: float, bound: str) -> KindAdvice:
    """The kind with its part of a group's need added."""
    return msgspec.structs.replace(
        one,
        workers_wanted=one.workers_wanted + number,
        bound=one.bound or bound,
        needed=one.needed + need.all_of_it * share,
        needed_cores=one.needed_cores + need.cores * share,
    )


def one_of_usual_kind(survey: Survey) -> tuple[KindAdvice, ...]:
    """One worker of a kind that the crawl's latest workers do: workers of other kinds may not exist."""
    kinds = kinds_at_rest(survey)
    names = [one.kind for one in kinds]
    done = [kind for member in survey.members for kind in member.beat.kinds if kind in names]
    usual = done[0] if done else names[0]
    return tuple(with_need(one, HARDLY_ONE) if one.kind == usual else one for one in kinds)


def one_of_each_kind(survey: Survey, *, which: Callable[[KindAdvice], bool]) -> tuple[KindAdvice, ...]:
    """One worker of each of these kinds."""
    return tuple(with_need(one, HARDLY_ONE) if which(one) else one for one in kinds_at_rest(survey))


def kinds_that_worked(before: Survey, now: Survey) -> set[str]:
    """The kinds of the workers that did pages between the surveys; they may have left since."""
    members = [member for member in now.members if member.presence is not Presence.GONE and _pages(before, [member])]
    return {kind for member in members for kind in member.beat.kinds}


def kind_lines(kinds: Sequence[KindAdvice]) -> list[str]:
    """The advice on kinds, a line each."""
    return [_line(one) for one in kinds]


def _line(one: KindAdvice) -> str:
    at_work = one.workers or "none"
    worth = f"{one.workers_wanted} {'worker is' if one.workers_wanted == 1 else 'workers are'} worth running now"
    waits = f"{several(one.waiting, 'task')} {'waits' if one.waiting == 1 else 'wait'}"
    bound = {"cpu": "; their cores are used up", "slots": "; their slots are all taken"}.get(one.bound, "")
    return f"kind {one.kind}: {worth}, {at_work} at work, {waits}{bound}"


def shared_out(number: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Divide workers among kinds by these weights; the largest remainders get the rest."""
    total = sum(weights.values())
    if not total:
        first = next(iter(weights))
        return {kind: number if kind == first else 0 for kind in weights}
    exact = {kind: number * weight / total for kind, weight in weights.items()}
    parts = {kind: math.floor(part) for kind, part in exact.items()}
    by_rest = sorted(exact, key=lambda kind: parts[kind] - exact[kind])
    for kind in by_rest[: number - sum(parts.values())]:
        parts[kind] += 1
    return parts


def _groups(survey: Survey, names: Iterable[str]) -> dict[tuple[str, ...], list[Member]]:
    """The workers at work, grouped by the kinds of the crawl that they do."""
    groups: dict[tuple[str, ...], list[Member]] = {}
    for member in survey.at_work:
        kinds = tuple(name for name in names if name in member.beat.kinds)
        if kinds:
            groups.setdefault(kinds, []).append(member)
    return groups


def _group_need(
    before: Survey, now: Survey, members: Sequence[Member], *, waiting: int, shares: Shares
) -> tuple[Need, str]:
    """How many workers of this group are needed, and what limits them."""
    if not waiting and not any(member.beat.busy for member in members):
        return NONE, ""
    done = measured(before, msgspec.structs.replace(now, members=members))
    own = shares_of(now, done)
    used = msgspec.structs.replace(own, store=shares.store)
    if done.figures.fetches:
        used = msgspec.structs.replace(used, pace=shares.pace, exits=shares.exits, line=shares.line)
    bound = "cpu" if used.cpu >= SATURATED else "slots" if used.slots >= SATURATED else ""
    if now.at <= before.at:
        return kept(now, members), bound
    if bound:
        return needed(used, done, grows=growing(now.crawl)), bound
    if hardly_waits(waiting, members):
        return in_hand(used, done, members), bound
    if not _pages(before, members):
        return (in_hand(used, done, members) if is_too_short(now, done) else kept(now, members)), bound
    return needed(used, done, grows=growing(now.crawl)), bound


def kept(survey: Survey, members: Sequence[Member]) -> Need:
    """As many as there are. A process that works on several crawls counts in part."""
    return Need(sum(survey.parts.get(member.beat.worker, 1.0) for member in members), float(len(members)))


def _pages(before: Survey, members: Sequence[Member]) -> int:
    """How many pages these workers did between the surveys."""
    earlier = {member.beat.worker: member.beat.pages for member in before.members}
    return sum(max(0, member.beat.pages - earlier.get(member.beat.worker, 0)) for member in members)
