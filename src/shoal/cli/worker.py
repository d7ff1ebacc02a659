"""`shoal worker`: runs a worker process that joins the fleet."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shoal.cli.options import exits_option, inbox_option, kinds_option, log_options, place_options
from shoal.errors import SettingError, ShoalError, UsageError
from shoal.settings.values import parse_duration, parse_size

if TYPE_CHECKING:
    from shoal.cli.main import Invocation
    from shoal.crawl.opening import Places

Command = Callable[..., Any]
Value = TypeVar("Value", int, float)


def limit_options(command: Command) -> Command:
    """--max-pages, --max-seconds, --max-memory, --replace and --idle-seconds of `shoal worker`."""

    @functools.wraps(command)
    def wrapped(*args: Any, idle_seconds: float | None, **options: Any) -> Any:
        return command(*args, idle_seconds=idle_seconds or 0.0, **options)

    for decorate in (
        click.option(
            "--idle-seconds",
            metavar="TIME",
            callback=_read_by(_seconds),
            help="End after this time without work: 90s, 10m.  [default: wait for work]",
        ),
        click.option("--replace", "replaces", is_flag=True, help="Start a new worker process when one retires."),
        click.option(
            "--max-memory",
            metavar="SIZE",
            callback=_read_by(parse_size),
            help="Retire at this memory: 500MB, 2GB.  [default: worker_max_memory of the spider]",
        ),
        click.option(
            "--max-seconds",
            metavar="TIME",
            callback=_read_by(_seconds),
            help="Retire after this time: 90s, 6h.  [default: worker_max_seconds of the spider]",
        ),
        click.option(
            "--max-pages",
            metavar="N",
            type=click.IntRange(min=0),
            help="Retire after so many pages: finish pages in progress, return the other leases, return 0."
            "  [default: worker_max_pages of the spider]",
        ),
    ):
        wrapped = decorate(wrapped)
    return wrapped


def _read_by(read: Callable[[str], Value]) -> Callable[[click.Context, click.Parameter, str | None], Value | None]:
    def parsed(_: click.Context, option: click.Parameter, text: str | None) -> Value | None:
        try:
            return None if text is None else read(text)
        except SettingError as error:
            raise UsageError(f"{option.opts[0]}: {error}") from None

    return parsed


def _seconds(text: str) -> float:
    """A time, or a bare number of seconds."""
    return parse_duration(f"{text}s" if text.replace(".", "", 1).isdigit() else text)


# Differs from the return codes of a worker that refuses to work: the fleet replaces a worker with this one.
BROKEN = 70


@click.command(short_help="Join the fleet and work until stopped.")
@click.argument("spider", metavar="FILE[:SPIDER]")
@place_options(exists=False, archive=True, works=True, pipe=True)
@click.option(
    "--crawl", "crawl_id", metavar="ID", help="Work only on this crawl.  [default: all unfinished crawls of the spider]"
)
@kinds_option
@exits_option
@inbox_option
@click.option("--other-code", is_flag=True, help="Work although the spider's files differ from the crawl's.")
@click.option("--name", hidden=True, help="The worker's name.")
@click.option("--store-connections", type=int, hidden=True, help="Connections to the store's server.")
@click.option("--parent", type=int, hidden=True, help="Stop when this process is no longer the parent.")
@click.option("--black-box", type=int, hidden=True, help="The descriptor of memory that the parent reads.")
@click.option("--metrics", metavar="[HOST:]PORT", help="Serve metrics for Prometheus here.  [default: none]")
@limit_options
@click.option("--burst", is_flag=True, help="End when the crawl is finished instead of waiting for the next.")
@log_options
@click.pass_obj
def worker(
    invocation: Invocation | None,
    /,
    spider: str,
    *,
    places: Places,
    pipe: str | None,
    black_box: int | None,
    replaces: bool,
    **options: Any,
) -> int:
    """Join the fleet and work until stopped.

    \b
    Example: shoal worker books.py --frontier /srv/crawls/shoal.db
    """
    from shoal.cli.process.supervisor import guarded
    from shoal.worker.black_box import BlackBox
    from shoal.worker.deaths import Watched

    def work(watched: Watched | None) -> int:
        from shoal.cli.loop import run
        from shoal.cli.process.worker_process import WorkerJob, work_on_crawls

        if black_box is not None:
            watched = Watched(BlackBox.inherited(black_box))
            if invocation is not None:
                invocation.box = watched.box
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

    # In a fleet the parent, the coordinator, is the supervisor.
    return guarded(work, is_worker=options["parent"] is None, replaces=replaces)
