"""`shoal import`: takes over the queue of another crawler."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.display.counting import Counting
from shoal.cli.display.numbers import count
from shoal.cli.display.screen import Screen
from shoal.cli.options import argument_option, checked_place, json_with, place_options
from shoal.errors import UsageError
from shoal.version import install_command

if TYPE_CHECKING:
    from shoal.crawl.opening import Places
    from shoal.scrapy.importing import ImportOptions, ImportReport, SourceKeys

FORMS = ("scrapy-redis-0.8", "scrapy-redis-0.6", "project")


@click.group("import", short_help="Take over the waiting queue of another crawler.")
def import_() -> None:
    """Take over the waiting queue of another crawler.

    \b
    Example: shoal import scrapy-redis books --frontier redis://queue-host:6379/0
    """


@import_.command("scrapy-redis", short_help="Take over the queue and the filter of a scrapy-redis spider.")
@click.argument("name")
@place_options(store=False, exists=False)
@click.option(
    "--from", "from_", metavar="URL", callback=checked_place, help="Redis of scrapy-redis.  [default: --frontier]"
)
@click.option(
    "--trust-pickle",
    is_flag=True,
    help="Unpickle the queue. A pickle can run any code on this machine with your rights: use this only if nobody but"
    " your own processes can write to that Redis.",
)
@click.option(
    "--fingerprints",
    type=click.Choice(FORMS),
    help="How the filter was made: by scrapy-redis 0.8 or later, by 0.6 or 0.7, or with the project's own"
    " fingerprinter.  [default: detected from the waiting requests]",
)
@click.option("--queue-key", metavar="KEY", help="SCHEDULER_QUEUE_KEY of the project.  [default: NAME:requests]")
@click.option(
    "--dupefilter-key", metavar="KEY", help="SCHEDULER_DUPEFILTER_KEY of the project.  [default: NAME:dupefilter]"
)
@click.option("--skip-unreadable", is_flag=True, help="Skip requests that cannot be read.")
@click.option("--remove", is_flag=True, help="Remove queue and filter from Redis after all of it was taken over.")
@click.option("--again", is_flag=True, help="Begin a new crawl, although one that took over this queue is finished.")
@click.option("--dedup", metavar="KIND", help="SHOAL_DEDUP of the project, if it sets that.")
@click.option("--dedup-ttl", metavar="TIME", help="SHOAL_DEDUP_TTL of the project, if it sets that.")
@argument_option
@json_with(
    "crawl", "is_begun", "waiting", "requests", "new", "dead_letters", "unreadable", "refused", "examples", "known",
    "keys", "new_keys", "fingerprints", "is_sure", "start_urls", "removed", "problems",
)  # fmt: skip
def scrapy_redis(name: str, *, places: Places, as_json: bool, **options: Any) -> int:
    """Take over the queue and the filter of the scrapy-redis spider NAME. Waiting requests become tasks of the crawl
    that `scrapy crawl NAME` with shoal's add-on joins; URLs in the filter are not fetched again.

    Stop all scrapy-redis processes of the spider first. If the command is interrupted, run it again: nothing is lost or
    doubled. Returns 1 if anything was not taken over.

    \b
    Example: shoal import scrapy-redis books --frontier redis://queue-host:6379/0 --trust-pickle
    """
    from shoal.cli.loop import run

    if missing := [package for package in ("scrapy", "redis") if importlib.util.find_spec(package) is None]:
        raise UsageError(f"`shoal import` needs {' and '.join(missing)}: {install_command('scrapy', 'redis')}")
    screen = Screen()
    if options["trust_pickle"]:
        # As in Scrapy: pickled objects may come from the project's own modules.
        sys.path.insert(0, os.getcwd())
    source = options["from_"] or places.frontier
    taken = run(_take_over(name, source, places=places, options=options, screen=screen))
    if as_json:
        screen.json(taken)
    else:
        _show(taken, name, keys=_keys(name, options), screen=screen)
    for problem in taken.problems:
        screen.say(f"shoal: {problem}")
    return 1 if taken.problems else 0


async def _take_over(
    name: str, source_url: str, *, places: Places, options: dict[str, Any], screen: Screen
) -> ImportReport:
    from shoal.backends import is_redis
    from shoal.crawl.opening import frontier_at
    from shoal.scrapy.importing import QueueSource, import_queue

    if not is_redis(source_url):
        raise UsageError("where is the Redis of scrapy-redis? Give --from redis://host:6379/0")
    wanted = _wanted(name, places, options)
    source = QueueSource(source_url, _keys(name, options))
    try:
        async with frontier_at(places.frontier) as frontier:
            with Counting.on(screen) as counting:
                return await import_queue(wanted, source=source, frontier=frontier, show=counting.show)
    finally:
        await source.close()


def _wanted(name: str, places: Places, options: dict[str, Any]) -> ImportOptions:
    from shoal.scrapy.crawl import ScrapyCrawl
    from shoal.scrapy.importing import ImportOptions
    from shoal.settings.layers import resolve

    # The process that joins sets the pace and most settings; whether keys expire is fixed now.
    dedup = {key: options[key] for key in ("dedup", "dedup_ttl") if options[key]}
    given = {"rate": "unlimited", "obey_robots": False, "max_depth": 0, **dedup}
    return ImportOptions(
        crawl=ScrapyCrawl(
            spider=name,
            places=places,
            settings=resolve([("command line", given)]).values,
            arguments=options["arguments"],
            requests_at_once=0,
        ),
        form=options["fingerprints"] or "",
        trusts_pickle=options["trust_pickle"],
        skips_unreadable=options["skip_unreadable"],
        again=options["again"],
        removes=options["remove"],
    )


def _keys(name: str, options: dict[str, Any]) -> SourceKeys:
    from shoal.scrapy.importing import SourceKeys

    def named(given: str | None, ending: str) -> str:
        # The placeholder of scrapy-redis settings.
        return (given or f"%(spider)s:{ending}").replace("%(spider)s", name)

    return SourceKeys(
        queue=named(options["queue_key"], "requests"),
        filter=named(options["dupefilter_key"], "dupefilter"),
        start=f"{name}:start_urls",
    )


def _show(taken: ImportReport, name: str, *, keys: SourceKeys, screen: Screen) -> None:
    how = "begun" if taken.is_begun else "filled"
    screen.heading(f"{taken.crawl} {how} with what scrapy-redis left of {name}")
    sure = "" if taken.is_sure or not taken.known else "; a guess, no request shows it: --fingerprints names another"
    rows = [
        ("requests", f"{count(taken.requests)} of {count(taken.waiting)}, {count(taken.new)} of them new"),
        ("filter", f"{count(taken.keys)} of {count(taken.known)} keys, {count(taken.new_keys)} of them new"),
        ("fingerprints", f"{taken.fingerprints}{sure}"),
    ]
    if taken.start_urls:
        rows.append(
            ("start URLs", f"{count(taken.start_urls)} in {keys.start} are kept: shoal's RedisSpider reads them")
        )
    screen.pairs([*rows, *(("left out", example) for example in taken.examples)])
    if taken.problems:
        return
    screen.line(f"next: scrapy crawl {name}, with shoal's add-on in its settings")
    if not taken.removed:
        screen.line(f"{keys.queue} and {keys.filter} are no longer needed: the same command with --remove removes them")
