"""The summary of a run: its numbers, what failed, whether the crawl is a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from shoal.cli.crawl_stores import Owners
from shoal.cli.display.lines import one_line
from shoal.cli.display.slips import slips_of
from shoal.cli.display.summary import Summary
from shoal.cli.process.job import Job
from shoal.crawl.joining import has_all_items
from shoal.crawl.opening import Places
from shoal.crawl.record import record_of
from shoal.frontier.base import Frontier
from shoal.frontier.rules.tasks import WORKER_LOST
from shoal.model import Crawl, CrawlState, DeadFilter, DeadLetter, Progress
from shoal.policy.failures import SITEMAP_NOTE, Failure, failures_of, faults_of, set_aside, shown_failures
from shoal.policy.limits import raised
from shoal.text.secrets import masked
from shoal.worker.outages import until_reachable

LETTERS_READ = 200
LONGEST_MESSAGE = 160  # long enough for the fix that an error names at its end


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The progress before and after a run. stayed: a --stay run was stopped with no task left."""

    before: Progress
    after: Progress
    seconds: float
    interrupted: bool
    stayed: bool = False


def sum_up(crawl: Crawl, result: RunResult, *, owners: Owners, places: Places) -> Summary:
    """The numbers of a run, without its failures."""
    before, after = result.before, result.after
    pages = after.ended - before.ended
    return Summary(
        crawl=crawl.id,
        spider=crawl.spider,
        state=after.state,
        resumed=False,
        interrupted=result.interrupted,
        seconds=round(result.seconds, 3),
        pages=pages,
        pages_per_second=round(pages / max(result.seconds, 0.001), 2),
        done=after.done,
        dead=after.dead,
        left=after.left,
        cancelled=after.cancelled,
        retried=after.retried,
        lost=after.lost,
        duplicates=after.duplicates,
        outcomes=after.outcomes,
        rejected=after.rejected,
        items=owners.own,
        store=masked(places.store),
        output=(),
        robots_ignored=not crawl.needs_rules,
        slips=slips_of(
            after.notes,
            record_of(crawl).settings,
            is_whole=has_all_items(crawl, places) and not owners.others,
        ),
        set_aside=set_aside(after),
        stayed=result.stayed,
        bad_sitemaps=sorted(name.removeprefix(SITEMAP_NOTE) for name in after.notes if name.startswith(SITEMAP_NOTE)),
    )


async def judged(
    summary: Summary, crawl: Crawl, result: RunResult, *, job: Job, frontier: Frontier, say: Callable[[str], None]
) -> Summary:
    """The summary with what failed, and whether that makes the crawl a failure."""
    settings, after = record_of(crawl).settings, result.after
    failures = failures_of(after, earlier=result.before.notes, settings=settings)
    if not result.interrupted:
        failures = await _with_messages(failures, crawl, frontier=frontier, say=say)
    is_over = after.state in (CrawlState.FINISHED, CrawlState.STOPPED)
    faults = faults_of(after, max_failures="0" if job.strict else job.settings.max_failures) if is_over else []
    reason = after.reason if after.state in (CrawlState.PAUSED, CrawlState.STOPPED) else ""
    raise_to = raised(crawl, after) if after.state is CrawlState.STOPPED else {}
    return msgspec.structs.replace(summary, failures=failures, faults=faults, reason=reason, raise_to=raise_to)


async def _with_messages(
    failures: list[Failure], crawl: Crawl, *, frontier: Frontier, say: Callable[[str], None]
) -> list[Failure]:
    """The failures; those that are shown get the message of their newest dead letter."""
    wanted = shown_failures(failures)
    if not wanted:
        return failures
    letters: list[DeadLetter] = []
    for reason in ("handler: ", f"{WORKER_LOST}: "):
        read = partial(frontier.dead, crawl.id, DeadFilter(reason=reason), limit=LETTERS_READ)
        letters += await until_reachable(read, say=say)
    messages: dict[Failure, str] = {}
    for failure in wanted:
        file, _, line = failure.at.rpartition(":")
        kind = "" if failure.reason == WORKER_LOST else "handler: "
        beginning, place = f"{kind}{failure.reason}: ", f'{file}", line {line}' if failure.at else ""
        found = (one for one in letters if one.reason.startswith(beginning) and place in one.detail)
        if (letter := next(found, None)) is not None:
            messages[failure] = one_line(letter.reason.removeprefix(beginning), LONGEST_MESSAGE)
    return [msgspec.structs.replace(failure, message=messages.get(failure, "")) for failure in failures]
