"""`shoal worker`: runs a worker process that joins the fleet."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.options import exits_option, inbox_option, kinds_option, log_options, place_options
from shoal.cli.worker_limits import limit_options
from shoal.errors import ShoalError

if TYPE_CHECKING:
    from shoal.cli.main import Entry
    from shoal.crawl.opening import Places

# Different from the codes of a worker that refuses to work: the fleet replaces a worker that ends with this one.
BROKEN = 70


@click.command(short_help="Join the fleet and work until told to stop.")
@click.argument("spider", metavar="FILE[:SPIDER]")
@place_options(exists=False, archive=True, works=True, pipe=True)
@click.option(
    "--crawl", "crawl_id", metavar="ID", help="Work only on this crawl.  [default: all unfinished crawls of the spider]"
)
@kinds_option
@exits_option
@inbox_option
@click.option("--other-code", is_flag=True, help="Work though the spider's files differ from the crawl's.")
@click.option("--name", hidden=True, help="The worker's name.")
@click.option("--store-connections", type=int, hidden=True, help="Connections to the store's server.")
@click.option("--parent", type=int, hidden=True, help="Stop when this process is no longer the parent.")
@click.option("--black-box", type=int, hidden=True, help="The descriptor of memory that the parent reads.")
@click.option("--metrics", metavar="[HOST:]PORT", help="Tell metrics for Prometheus there.  [default: nowhere]")
@limit_options
@click.option("--burst", is_flag=True, help="End when the crawl is finished instead of waiting for the next.")
@log_options
@click.pass_obj
def worker(
    entry: Entry | None,
    /,
    spider: str,
    *,
    places: Places,
    pipe: str | None,
    black_box: int | None,
    replaces: bool,
    **options: Any,
) -> int:
    """Join the fleet and work until told to stop.

    \b
    Example: shoal worker books.py --frontier /srv/crawls/shoal.db
    """
    from shoal.cli.guardian import guarded
    from shoal.worker.black_box import BlackBox
    from shoal.worker.deaths import Watched

    def work(watched: Watched | None) -> int:
        from shoal.cli.loop import run
        from shoal.cli.worker_process import WorkerJob, work_on_crawls

        if black_box is not None:
            watched = Watched(BlackBox.inherited(black_box))
            if entry is not None:
                entry.box = watched.box
        try:
            return run(
                work_on_crawls(
                    WorkerJob(reference=spider, places=places, watched=watched, replaced=replaces, **options)
                )
            )
        except (ShoalError, KeyboardInterrupt, BrokenPipeError):
            raise
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return BROKEN

    # In a fleet the coordinator is the parent, and watches.
    return guarded(work, is_worker=options["parent"] is None, replaces=replaces)
