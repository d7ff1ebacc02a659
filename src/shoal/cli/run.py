"""`shoal run`: runs a spider from its file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shoal.cli.options import (
    argument_option,
    exits_option,
    inbox_option,
    json_option,
    kinds_option,
    log_options,
    place_options,
    run_options,
    setting_options,
)

if TYPE_CHECKING:
    from shoal.crawl.opening import Places
    from shoal.worker.deaths import Watched


@click.command(short_help="Run a spider to the end; run it again to resume.")
@click.argument("spider", metavar="FILE[:SPIDER]")
@argument_option
@click.option("--scheduled", metavar="RUN", default="", hidden=True, help="The run of a schedule.")
@click.option(
    "--stay",
    is_flag=True,
    help="Do not finish: wait for URLs from outside (see --inbox and `shoal add`) until stopped.",
)
@inbox_option
@run_options
@kinds_option
@exits_option
@place_options(exists=False, archive=True, works=True)
@setting_options
@log_options
@json_option
def run(
    spider: str, *, places: Places, inbox: str | None, flags: dict[str, Any], arguments: dict[str, str], **options: Any
) -> int:
    """Run a spider to the end; run it again to resume.

    \b
    Example: shoal run books.py --workers 4 -o books.csv
             shoal run books.py --stay --inbox incoming/
    """
    from shoal.cli.process.supervisor import guarded

    def work(watched: Watched | None) -> int:
        from shoal.cli.display.inboxes import with_inbox
        from shoal.cli.display.next_commands import run_line
        from shoal.cli.loop import run as run_loop
        from shoal.cli.process.job import Job
        from shoal.cli.process.run_process import run_job
        from shoal.crawl.code import code_of
        from shoal.run.intakes import settings_of
        from shoal.spider.loading import load_spider, made

        kind = load_spider(spider)
        code = code_of(spider)
        settings = settings_of(kind, flags).values
        job = Job(
            spider=made(kind, arguments),
            reference=spider,
            settings=settings,
            places=with_inbox(places, inbox, spiders=[kind]),
            again=run_line(spider, flags, arguments=arguments, inbox=inbox, **options),
            watched=watched,
            code=code,
            **options,
        )
        return run_loop(run_job(job))

    return guarded(work, is_worker=options["workers"] == 1)
