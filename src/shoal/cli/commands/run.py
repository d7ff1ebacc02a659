"""`shoal run`: a spider from its file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shoal.cli.options import json_option, place_options, setting_options

if TYPE_CHECKING:
    from shoal.crawl import Places


@click.command(short_help="Run a spider to the end; run it again to resume.")
@click.argument("spider", metavar="FILE[:SPIDER]")
@click.option("--workers", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes to work with.")
@click.option("-o", "--output", metavar="FILE", help="Write the items to a .jsonl, .csv, .json or .parquet file, too.")
@click.option("--fresh", is_flag=True, help="Forget the unfinished crawl and begin a new one.")
@place_options(exists=False, archive=True)
@setting_options
@json_option
def run(spider: str, *, places: Places, flags: dict[str, Any], **options: Any) -> int:
    """Run a spider to the end; run it again to resume.

    \b
    Example: shoal run books.py --workers 4 -o books.csv
    """
    from shoal.cli.crawl_process import Job, run_job
    from shoal.cli.loop import run as run_loop
    from shoal.crawl import settings_of
    from shoal.spider_file import load_spider

    kind = load_spider(spider)
    settings = settings_of(kind, flags).values
    return run_loop(run_job(Job(spider=kind(), reference=spider, settings=settings, places=places, **options)))
