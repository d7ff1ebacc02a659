"""Which kinds of tasks a spider has, which of them workers do, and which nobody does. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from shoal.errors import UsageError
from shoal.exits.pools import plain_kind, region_of
from shoal.model import BROWSER, HTTP, Crawl, CrawlState, Progress, WorkerBeat
from shoal.settings.table import Settings
from shoal.spider.spider import Spider, handler_kinds
from shoal.text.errors import several


def kinds_of(spider: type[Spider], settings: Settings) -> tuple[str, ...]:
    """The kinds that a spider names itself: that of its requests, and those of its handlers."""
    own = BROWSER if settings.render else settings.kind
    return tuple(dict.fromkeys([own, *handler_kinds(spider).values()]))


def handled_elsewhere(spider: type[Spider], kinds: Iterable[str]) -> dict[str, str]:
    """The handlers that workers of these kinds leave to others, and the kinds of those."""
    return {name: kind for name, kind in handler_kinds(spider).items() if kind not in kinds}


def check_stages(spider: type[Spider], settings: Settings, kinds: Collection[str], *, has_archive: bool) -> None:
    """Refuse to work on a part of the stages of a spider without an archive: pages go from one to the other there."""
    named = kinds_of(spider, settings)
    if len(named) > 1 and not has_archive and kinds and not {*named} <= {*kinds}:
        name, kind = next(iter(handler_kinds(spider).items()))
        raise UsageError(
            f"the handler {name} runs in workers of the kind {kind}, which get its pages from the archive:"
            f" give --archive, or do all kinds here with --kinds {','.join(named)}"
        )


class KindShown(NamedTuple):
    """A kind of a crawl's tasks: how many wait, and how many workers do them."""

    kind: str
    waiting: int
    workers: int


def kinds_shown(progress: Progress, workers: Iterable[WorkerBeat]) -> list[KindShown]:
    """The kinds of a crawl that has several, in the order in which they came."""
    return _shown(progress.kinds, list(workers))


def unserved(progress: Progress, workers: Iterable[WorkerBeat]) -> list[KindShown]:
    """The kinds of a running crawl whose tasks wait though no worker does them."""
    if progress.state is not CrawlState.RUNNING:
        return []
    # Of a crawl with one kind, workers may do another one.
    kinds = progress.kinds or {HTTP: progress.queued + progress.delayed}
    return [one for one in _shown(kinds, list(workers)) if one.waiting and not one.workers]


def _shown(kinds: Mapping[str, int], workers: Sequence[WorkerBeat]) -> list[KindShown]:
    return [KindShown(kind, waiting, sum(kind in beat.kinds for beat in workers)) for kind, waiting in kinds.items()]


def unserved_line(kinds: Sequence[KindShown], crawl: Crawl, workers: Iterable[WorkerBeat] = ()) -> str:
    """Says that nobody does these kinds, and which command would. `workers` are those at work."""
    spider = crawl.settings.get("spider") or "FILE"
    if regional := [one for one in kinds if region_of(one.kind)]:
        offered = dict.fromkeys(region_of(kind) for worker in workers for kind in worker.kinds if region_of(kind))
        return _unoffered_line(regional, spider, offered=sorted(offered))
    waiting = sum(one.waiting for one in kinds)
    names = " and ".join(one.kind for one in kinds)
    verb, which = ("waits", "that kind") if waiting == 1 else ("wait", "such tasks")
    started = f"shoal worker {spider} --kinds {','.join(one.kind for one in kinds)}"
    return f"{several(waiting, 'task')} of the kind {names} {verb}, and no worker does {which}: `{started}` does"


def _unoffered_line(kinds: Sequence[KindShown], spider: str, *, offered: Sequence[str]) -> str:
    """Says that nobody offers exits of these regions, or that those who do have no workers of the kind. `offered`: the
    regions that there are."""
    waiting = sum(one.waiting for one in kinds)
    regions = " and ".join(dict.fromkeys(region_of(one.kind) for one in kinds))
    others = ",".join(dict.fromkeys(plain_kind(one.kind) for one in kinds if plain_kind(one.kind) != HTTP))
    started = f"shoal worker {spider} --exits FILE{f' --kinds {others}' if others else ''}"
    verb = "waits" if waiting == 1 else "wait"
    who = f"no worker of the kind {others.replace(',', ' or ')}" if others else "no worker"
    is_there = any(region_of(one.kind) in offered for one in kinds)
    only = f", only in {', '.join(offered)}" if offered and not is_there else ""
    return (
        f"{several(waiting, 'task')} {verb} for the region {regions}, and {who} offers an exit there{only}: `{started}`"
        f" does, where FILE has an exit of that region"
    )
