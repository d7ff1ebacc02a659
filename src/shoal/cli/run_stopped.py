"""A run of a spider whose newest crawl was stopped, or would be stopped at once: it goes on, or is only shown."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from shoal.cli.next_commands import command, run_again
from shoal.crawl.beginning import crawls_of, resumable_crawl
from shoal.frontier.base import Frontier
from shoal.model import Crawl, CrawlState
from shoal.policy.limits import limits_of, raised, reached_by

if TYPE_CHECKING:
    from shoal.cli.display.screen import Screen
    from shoal.cli.job import Job


async def stopped_crawl_of(job: Job, *, frontier: Frontier, screen: Screen) -> Crawl | None:
    """The crawl that the run would resume, if a limit stops it at once: it is stopped and only to be shown. None: the
    run resumes or begins one."""
    crawls = await crawls_of(job.spider, frontier=frontier)
    former = resumable_crawl(crawls, reference=job.reference, places=job.places, anew=begins_anew(job))
    if former is None:
        return None
    if former.state is CrawlState.STOPPED and job.watched is not None and job.watched.has_begun:
        # This very run was stopped, in a process that died afterwards: only its end is left to do.
        return former
    limits = limits_of(job.settings, now=time.time(), former=former)
    progress = await frontier.progress(former.id)
    limited = msgspec.structs.replace(former, limits=limits)
    limit = reached_by(limited, progress, now=time.time())
    if limit is None:
        return None
    await frontier.set_state(former.id, CrawlState.STOPPED, reason=limit.why)
    if begins_anew(job):
        return None
    new = command(f"{job.again} --again", job.places) if job.again else "the same command with --again"
    goes_on = run_again(former, job.places, **raised(limited, progress))
    line = f"{former.id} is stopped: {limit.why}, nothing is fetched"
    screen.say(f"{line}: {goes_on} lets it go on, {new} begins a new one")
    return msgspec.structs.replace(limited, state=CrawlState.STOPPED, finished=former.finished or time.time())


def begins_anew(job: Job) -> bool:
    """Whether a crawl that was stopped is not resumed: each run of a schedule is one of its own."""
    return job.anew or bool(job.scheduled)
