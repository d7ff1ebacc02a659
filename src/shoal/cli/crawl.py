"""`shoal crawl`: crawls a site without a spider file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shoal.cli.options import exits_option, json_option, log_options, place_options, run_options, setting_options

if TYPE_CHECKING:
    from shoal.crawl.opening import Places
    from shoal.spider.spider import Spider
    from shoal.worker.deaths import Watched

REFERENCE = "shoal.spider.generic:SitePages"


@click.command(short_help="No code: title, text, links and status of every page in scope.")
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@run_options
@place_options(exists=False, archive=True, works=True)
@exits_option
@setting_options
@log_options
@json_option
def crawl(urls: tuple[str, ...], *, places: Places, flags: dict[str, Any], **options: Any) -> int:
    """No code: title, text, links and status of every page in scope.

    \b
    Example: shoal crawl https://example.com/docs/ --depth 2 -o docs.jsonl
    """
    from shoal.cli.process.supervisor import guarded

    def work(watched: Watched | None) -> int:
        from shoal.cli.loop import run
        from shoal.cli.process.job import Job
        from shoal.cli.process.run_process import run_job
        from shoal.run.intakes import settings_of
        from shoal.spider.generic import SitePages
        from shoal.urls.canonical import canonical, lane_of

        start = [canonical(url) for url in urls]
        kind = starting_at(SitePages, start, name=f"crawl-{lane_of(start[0])}")
        settings = settings_of(kind, flags).values
        job = Job(spider=kind(), reference=REFERENCE, settings=settings, places=places, watched=watched, **options)
        return run(run_job(job))

    return guarded(work, is_worker=options["workers"] == 1)


def starting_at(spider: type[Spider], start: list[Any], *, name: str) -> type[Spider]:
    """The spider with this start and name; worker processes load the original, they need neither."""
    return type(spider.__name__, (spider,), {"start": start, "name": name})
