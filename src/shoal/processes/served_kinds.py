"""Which kinds of tasks workers do, and which nobody does. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from shoal.error_text import several
from shoal.model import HTTP, Crawl, CrawlState, Progress, WorkerBeat


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


def unserved_line(kinds: Sequence[KindShown], crawl: Crawl) -> str:
    """Says that nobody does these kinds, and which command would."""
    spider = crawl.settings.get("spider") or "FILE"
    waiting = sum(one.waiting for one in kinds)
    names = " and ".join(one.kind for one in kinds)
    verb, which = ("waits", "that kind") if waiting == 1 else ("wait", "such tasks")
    started = f"shoal worker {spider} --kinds {','.join(one.kind for one in kinds)}"
    return f"{several(waiting, 'task')} of the kind {names} {verb}, and no worker does {which}: `{started}` does"
