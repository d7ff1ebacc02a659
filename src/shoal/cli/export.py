"""`shoal export`: writes items to a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from shoal.cli.display.counting import counting_export
from shoal.cli.display.numbers import moment_given, several
from shoal.cli.display.screen import Screen
from shoal.cli.options import (
    check_exists,
    check_json_output,
    crawl_argument,
    json_with,
    output_option,
    place_options,
)
from shoal.crawl.places import check_store_exists
from shoal.errors import UsageError
from shoal.text.secrets import masked

if TYPE_CHECKING:
    from shoal.crawl.opening import Places
    from shoal.results.export import ExportRequest
    from shoal.store.base import Store


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What was written to `output`: `number` items, or versions of items. `crawl` is None for a whole spider.

    `yielded`: items that the crawl's pages yielded. `elsewhere`: items of the spider per other crawl that wrote them
    last."""

    output: str
    spider: str | None
    crawl: str | None
    versions: bool
    number: int
    yielded: int = 0
    elsewhere: dict[str, int] = msgspec.field(default_factory=dict)


@click.command(short_help="Write a crawl's items to a file.")
@crawl_argument
@output_option("A .jsonl, .csv, .json or .parquet file, or -.", required=True)
@click.option("--all", "everything", is_flag=True, help="All items of the spider, including those of its other crawls.")
@click.option("--spider", metavar="NAME", help="All items of this spider; needs only the store.")
@click.option("--since", metavar="TIME", help="Items seen since then: 2026-05-01, 2026-05-01T10:00, or 7d for a week.")
@click.option("--changed-since", metavar="TIME", help="Items that are new or changed since then.")
@click.option("--url", "url_prefix", metavar="PREFIX", help="Items of pages whose URL begins with this.")
@click.option("--where", metavar="FIELD=VALUE", multiple=True, help="Items with this value in this field; repeatable.")
@click.option("--gone/--present", default=None, help="Only items that are gone, or only the others.")
@click.option("--versions", is_flag=True, help="Every kept version, not only the latest.")
@place_options(exists=False)
@json_with("output", "spider", "crawl", "versions", "number", "yielded", "elsewhere")
def export(crawl: str | None, *, places: Places, output: str, as_json: bool, **choice: Any) -> None:
    """Write a crawl's items to a file; - writes JSON Lines to standard output.

    \b
    Example: shoal export books-1 -o books.csv
    Example: shoal export --spider books --changed-since 7d -o news.jsonl
    """
    from shoal.cli.loop import run

    check_json_output(output, as_json=as_json)
    screen = Screen()
    exported, remark = run(_export(crawl, output, places=places, screen=screen, **choice))
    if as_json:
        screen.json(exported)
    else:
        what = several(exported.number, "version" if exported.versions else "item")
        screen.say(f"{what} of {exported.crawl or exported.spider} in {output}")
    if remark:
        screen.say(remark)


async def _export(
    name: str | None,
    output: str,
    *,
    places: Places,
    screen: Screen,
    everything: bool,
    spider: str | None,
    **choice: Any,
) -> tuple[Exported, str]:
    """What was written, and a remark for people."""
    from shoal.crawl.opening import store_at
    from shoal.crawl.places import default_store
    from shoal.results.export import check_target

    check_target(output)
    wanted = _wanted(**choice)
    if spider is None:
        if places.store:
            check_store_exists(places.store)
        check_exists(places)
        return await _export_crawl(name, output, wanted, places=places, screen=screen, everything=everything)
    if name is not None or everything:
        raise UsageError("--spider exports all items of the spider: leave out the crawl and --all")
    url = places.store or default_store(places.frontier)
    check_store_exists(url)
    async with store_at(url) as store:
        exported = await _write(store, output, _of(wanted, spider, None), screen=screen)
        unmatched = "" if exported.number else await _unmatched(store, exported)
        return exported, unmatched or ("" if exported.number else f"{masked(url)} has no item of {spider}")


async def _export_crawl(
    name: str | None, output: str, wanted: ExportRequest, *, places: Places, screen: Screen, everything: bool
) -> tuple[Exported, str]:
    from shoal.cli.crawl_choice import choose
    from shoal.cli.crawl_stores import owners_line, owners_of, say_what_is_elsewhere
    from shoal.crawl.joining import existing_store
    from shoal.crawl.opening import frontier_at, store_at

    async with frontier_at(places.frontier) as frontier:
        crawls = await frontier.crawls()
        crawl = choose(crawls, name, say=screen.say)
        places = msgspec.structs.replace(places, store=existing_store(crawl, places))
        async with store_at(places.store) as store:
            wanted = _of(wanted, crawl.spider, None if everything else crawl.id)
            exported = await _write(store, output, wanted, screen=screen)
            say_what_is_elsewhere(crawl, places, say=screen.say)
            unmatched = "" if exported.number else await _unmatched(store, exported)
            if everything or unmatched:
                return exported, unmatched
            owners = await owners_of(crawl, await frontier.progress(crawl.id), crawls=crawls, store=store)
            exported = msgspec.structs.replace(exported, yielded=owners.yielded, elsewhere=owners.others)
            return exported, owners_line(owners, places)


async def _write(store: Store, output: str, wanted: ExportRequest, *, screen: Screen) -> Exported:
    from shoal.results.export import export as write_items

    noun = "version" if wanted.versions else "item"
    with counting_export(screen, output, noun=noun) as show:
        number = await write_items(store, output, wanted=wanted, show=show)
    which = wanted.which
    return Exported(output=output, spider=which.spider, crawl=which.crawl, versions=wanted.versions, number=number)


async def _unmatched(store: Store, exported: Exported) -> str:
    """The message if items exist but none matched; empty if there are none."""
    from shoal.store.base import ItemFilter

    there = await store.count_items(ItemFilter(spider=exported.spider, crawl=exported.crawl))
    what = "has a kept version (keep_versions) that matches" if exported.versions else "matches"
    return f"{exported.crawl or exported.spider}: none of its {several(there, 'item')} {what}" if there else ""


def _wanted(
    *, since: str | None, changed_since: str | None, where: tuple[str, ...], versions: bool, **which: Any
) -> ExportRequest:
    from shoal.results.export import ExportRequest
    from shoal.store.base import ItemFilter

    chosen = ItemFilter(since=_moment(since), changed_since=_moment(changed_since), **which)
    return ExportRequest(which=chosen, where=tuple(map(_condition, where)), versions=versions)


def _of(wanted: ExportRequest, spider: str, crawl: str | None) -> ExportRequest:
    return msgspec.structs.replace(wanted, which=msgspec.structs.replace(wanted.which, spider=spider, crawl=crawl))


def _moment(text: str | None) -> float | None:
    return None if text is None else moment_given(text)


def _condition(text: str) -> tuple[str, str]:
    field, equals, value = text.partition("=")
    if not equals or not field:
        raise UsageError(f"--where {text!r} is not understood: write --where FIELD=VALUE")
    return field, value
