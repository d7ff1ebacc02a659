"""Asks before a crawl is discarded or cancelled on which others work."""

from __future__ import annotations

import sys

import click

from shoal.cli.display.numbers import several
from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.model import Crawl, WorkerBeat
from shoal.worker.workers import at_work

NAMED = 4


async def ask_if_others_work_on(crawl: Crawl, *, frontier: Frontier, deed: str, yes: bool) -> None:
    """Name the workers that work on the crawl right now and ask whether the deed is meant. Refuses where nobody can be
    asked; `yes` is the answer given before."""
    workers = [] if yes else await at_work(crawl.id, frontier=frontier)
    if not workers:
        return
    said = f"{crawl.id} is worked on right now by {named(workers)}"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{said}: stop them, or {deed} it anyway with --yes")
    if not click.confirm(f"{said}. {deed.capitalize()} it?", err=True):
        raise UsageError(f"{crawl.id} was left as it is")


def named(workers: list[WorkerBeat]) -> str:
    """Workers, for people."""
    names = ", ".join(f"{beat.worker} on {beat.host}" for beat in workers[:NAMED])
    more = f" and {len(workers) - NAMED} more" if len(workers) > NAMED else ""
    return f"{several(len(workers), 'worker')} ({names}{more})"
