"""What becomes of crawls that have ended: when their URL keys are dropped, and when they leave the frontier.

By the settings of the spider's newest crawl. Only of the frontier: items, fetch log and archived pages stay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from shoal.model import Crawl, CrawlState
from shoal.processes.crawl_record import CrawlRecord, record_of
from shoal.setting_values import parse_duration
from shoal.settings import Settings

ENDED: Final = (CrawlState.FINISHED, CrawlState.CANCELLED)


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What will become of one crawl. `removed_at` is when it may leave the frontier, by the setting in `removed_by`;
    None: as things are, it stays, for the reason in `stays`. `keys_dropped_at`: the same of its keys; None: they stay,
    or are gone already."""

    removed_at: float | None = None
    removed_by: str = ""
    stays: str = ""
    keys_dropped_at: float | None = None
    keys_dropped_by: str = ""


def fates(crawls: Sequence[Crawl]) -> dict[str, Fate]:
    """What will become of each crawl of a frontier. Crawls that this shoal must leave alone stay."""
    readable = _readable(crawls)
    needed = needed_by(readable)
    found = {crawl.id: Fate(stays="it is left alone") for crawl in crawls}
    for group in _by_spider(readable):
        settings = record_of(_newest(group)).settings
        ended, others = _divided(group)
        for crawl in others:
            found[crawl.id] = Fate(stays=f"it is {crawl.state}")
        for rank, crawl in enumerate(sorted(ended, key=_end_of, reverse=True)):
            found[crawl.id] = _fate(crawl, rank, settings, needer=needed.get(crawl.id, ""))
    return found


def _fate(crawl: Crawl, rank: int, settings: Settings, *, needer: str) -> Fate:
    keys_at, keys_by = _keys_dropped(crawl, rank, settings, needer=needer)
    fate = Fate(keys_dropped_at=keys_at, keys_dropped_by=keys_by)
    if needer:
        return msgspec.structs.replace(fate, stays=f"{needer} needs it")
    if rank == 0:
        return msgspec.structs.replace(fate, stays="of its spider it is the last that ended")
    if settings.keep_crawls and rank >= settings.keep_crawls:
        by = f"keep_crawls = {settings.keep_crawls}"
        return msgspec.structs.replace(fate, removed_at=_end_of(crawl), removed_by=by)
    if ttl := parse_duration(settings.crawl_ttl):
        by = f"crawl_ttl = {settings.crawl_ttl}"
        return msgspec.structs.replace(fate, removed_at=_end_of(crawl) + ttl, removed_by=by)
    return msgspec.structs.replace(fate, stays="no setting removes it")


def _keys_dropped(crawl: Crawl, rank: int, settings: Settings, *, needer: str) -> tuple[float | None, str]:
    """A cancelled crawl may be resumed, and needs its keys for that. The next crawl of a spider that skips what it knew
    needs those of the newest one."""
    ttl = parse_duration(settings.known_ttl)
    is_source = rank == 0 and record_of(crawl).skips_known
    if crawl.state is not CrawlState.FINISHED or crawl.keys == "dropped" or not ttl or is_source or needer:
        return None, ""
    return _end_of(crawl) + ttl, f"known_ttl = {settings.known_ttl}"


def needed_by(crawls: Iterable[Crawl]) -> dict[str, str]:
    """The crawls that unfinished ones need, each with one that does: they ask for its pages only if they have changed,
    or still have to learn its keys."""
    unfinished = _unfinished(crawls)
    before = {name: crawl for crawl, record in unfinished.items() for name in record.before}
    return before | _known_from(unfinished)


def learns_from(crawls: Iterable[Crawl]) -> dict[str, str]:
    """Those of them whose keys an unfinished crawl still has to learn."""
    return _known_from(_unfinished(crawls))


def _known_from(unfinished: dict[str, CrawlRecord]) -> dict[str, str]:
    return {name: crawl for crawl, record in unfinished.items() for name in record.known_from}


def _unfinished(crawls: Iterable[Crawl]) -> dict[str, CrawlRecord]:
    groups = _by_spider(_readable(crawls))
    return {crawl.id: record_of(crawl) for group in groups for crawl in _divided(group)[1]}


def _divided(group: Sequence[Crawl]) -> tuple[list[Crawl], list[Crawl]]:
    """A spider's crawls: those that are over, and the others. One that was stopped is over once a newer one has begun:
    runs go on with that, and a spider that is stopped at a deadline every night would fill its frontier."""
    newest, over, others = _newest(group), list[Crawl](), list[Crawl]()
    for crawl in group:
        is_over = crawl.state in ENDED or (crawl.state is CrawlState.STOPPED and crawl is not newest)
        (over if is_over else others).append(crawl)
    return over, others


def _newest(group: Sequence[Crawl]) -> Crawl:
    return max(group, key=lambda crawl: crawl.created)


def _readable(crawls: Iterable[Crawl]) -> list[Crawl]:
    return [crawl for crawl in crawls if crawl.settings and not crawl.refusal]


def _by_spider(crawls: Iterable[Crawl]) -> list[list[Crawl]]:
    """The crawls of each spider's file. Two files may have a spider of one name; on machines with other folders the
    file's name tells which is which."""
    groups: dict[tuple[str, str], list[Crawl]] = {}
    for crawl in crawls:
        groups.setdefault((crawl.spider, _file_of(record_of(crawl))), []).append(crawl)
    return list(groups.values())


def _file_of(record: CrawlRecord) -> str:
    path = record.source.path or record.spider
    return path.replace("\\", "/").rpartition("/")[2].partition(":")[0]


def _end_of(crawl: Crawl) -> float:
    return crawl.created if crawl.finished is None else crawl.finished
