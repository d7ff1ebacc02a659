"""How many workers of each kind are worth running. Pure.

Workers that do the same kinds are looked at together: their cores and slots are their own, hosts' pace, exits, line and
store are those of the whole crawl. The workers that a group wants are shared out over its kinds by what waits, so that
the sum over kinds is the number for the crawl, and the sum over some kinds the number for workers that do these."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from shoal.error_text import several
from shoal.model import HTTP
from shoal.processes.crawl_survey import Survey, measured
from shoal.processes.crew import Member
from shoal.processes.utilisation import SATURATED, TARGET_SHARE, Shares, growing, hardly_waits, shares_of, wanted


class KindAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of a crawl's tasks: how many wait, how many workers at work do them, and how many are worth running. A
    worker that does several kinds counts as one of each in `workers`, and once in the sum of `workers_wanted`.
    `bound`: what of the workers is used up, "cpu" or "slots"."""

    kind: str
    waiting: int
    workers: int
    workers_wanted: int
    bound: str = ""


def has_several_kinds(survey: Survey) -> bool:
    """Whether kinds tell something: tasks are of several, or there are workers that do not do the only one."""
    return bool(survey.progress.kinds) or any(HTTP not in member.beat.kinds for member in survey.at_work)


def kinds_at_rest(survey: Survey) -> tuple[KindAdvice, ...]:
    """Each kind, with nobody worth running. A crawl that never had another one has the kind http."""
    waiting = survey.progress.kinds or {HTTP: survey.progress.queued + survey.progress.delayed}
    kinds = [member.beat.kinds for member in survey.at_work]
    return tuple(
        KindAdvice(kind=kind, waiting=tasks, workers=sum(kind in done for done in kinds), workers_wanted=0)
        for kind, tasks in waiting.items()
    )


def advise_kinds(before: Survey, now: Survey, *, shares: Shares) -> tuple[KindAdvice, ...]:
    """Advice on each kind of a crawl with work left; `shares` are those of the whole crawl."""
    kinds = {one.kind: one for one in kinds_at_rest(now)}
    found = {name: 1 if one.waiting and not one.workers else 0 for name, one in kinds.items()}
    bounds = dict.fromkeys(kinds, "")
    for names, members in _groups(now, kinds).items():
        waiting = {name: kinds[name].waiting for name in names}
        number, bound = _group_wanted(before, now, members, waiting=sum(waiting.values()), shares=shares)
        for name, part in shared_out(number, waiting).items():
            found[name] += part
            bounds[name] = bounds[name] or bound
    if not any(found.values()):
        # The leases of workers that are gone: whoever asks for leases reclaims those of every kind.
        found[next(iter(found))] = 1
    return tuple(
        msgspec.structs.replace(one, workers_wanted=found[name], bound=bounds[name]) for name, one in kinds.items()
    )


def kind_lines(kinds: Sequence[KindAdvice]) -> list[str]:
    """The same in plain words."""
    return [_line(one) for one in kinds]


def _line(one: KindAdvice) -> str:
    at_work = one.workers or "none"
    worth = f"{one.workers_wanted} {'worker is' if one.workers_wanted == 1 else 'workers are'} worth running now"
    waits = f"{several(one.waiting, 'task')} {'waits' if one.waiting == 1 else 'wait'}"
    bound = {"cpu": "; their cores are used up", "slots": "; their slots are all taken"}.get(one.bound, "")
    return f"kind {one.kind}: {worth}, {at_work} at work, {waits}{bound}"


def shared_out(number: int, weights: Mapping[str, int]) -> dict[str, int]:
    """So many workers shared out over kinds by these weights; the first ones get what is left over."""
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
    """The workers at work, by which of the crawl's kinds they do."""
    groups: dict[tuple[str, ...], list[Member]] = {}
    for member in survey.at_work:
        kinds = tuple(name for name in names if name in member.beat.kinds)
        if kinds:
            groups.setdefault(kinds, []).append(member)
    return groups


def _group_wanted(
    before: Survey, now: Survey, members: Sequence[Member], *, waiting: int, shares: Shares
) -> tuple[int, str]:
    """How many of these workers are worth running, and what of them is used up."""
    if not waiting and not any(member.beat.busy for member in members):
        return 0, ""
    done = measured(before, msgspec.structs.replace(now, members=members))
    own = shares_of(now, done)
    used = msgspec.structs.replace(own, store=shares.store)
    if done.figures.fetches:
        used = msgspec.structs.replace(used, pace=shares.pace, exits=shares.exits, line=shares.line)
    bound = "cpu" if used.cpu >= SATURATED else "slots" if used.slots >= SATURATED else ""
    if now.at <= before.at or (not bound and not _pages(before, members)):
        return len(members), bound
    if not bound and hardly_waits(waiting, members):
        return max(1, math.ceil(len(members) * max(used.cpu, used.slots, used.store) / TARGET_SHARE)), bound
    return wanted(used, done, grows=growing(now.crawl)), bound


def _pages(before: Survey, members: Sequence[Member]) -> int:
    """How many pages these workers have done since then."""
    earlier = {member.beat.worker: member.beat.pages for member in before.members}
    return sum(max(0, member.beat.pages - earlier.get(member.beat.worker, 0)) for member in members)
