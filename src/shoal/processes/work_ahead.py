"""When there is something for a worker to do: now, or later. Pure."""

from __future__ import annotations

from typing import Final

from shoal.model import CrawlState
from shoal.processes.crawl_survey import LANES_READ, Survey

# Before work is due, a machine and a worker have to start: one is wanted so much earlier.
LEAD_SECONDS: Final = 120.0
# For a shorter rest no worker is sent away. Longer than the lead, and than autoscalers wait before they go to zero.
REST_SECONDS: Final = 900.0


def seconds_until_work(survey: Survey) -> float:
    """Seconds until a task may begin: the first delayed one is due, or the first host with queued ones may start. 0:
    now, or tasks are leased, whose workers may be gone."""
    progress = survey.progress
    if progress.leased or not progress.left:
        return 0.0
    times = [progress.due_in] if progress.delayed else []
    if progress.queued:
        waiting = [lane.starts_in for lane in survey.lanes if lane.waiting]
        # Of hosts that were not read, any may start now.
        times.append(min(waiting) if waiting and len(survey.lanes) < LANES_READ else 0.0)
    return min(times)


def is_resting(survey: Survey) -> bool:
    """Whether all tasks wait for a time that is so far away that no worker is worth keeping, or worth starting yet.
    Between the two limits things stay as they are: so nobody is sent away and called back in turn."""
    return seconds_until_work(survey) > (REST_SECONDS if survey.at_work else LEAD_SECONDS)


def only_later(survey: Survey) -> bool:
    """Whether all tasks wait for a later time, so that workers have nothing in hand."""
    progress = survey.progress
    return bool(progress.delayed) and not progress.queued and not progress.leased


def waits_to_be_taken_in(survey: Survey) -> bool:
    """Whether URLs were pushed that only a worker takes in: it sets a finished crawl running again."""
    is_open = survey.progress.state in (CrawlState.RUNNING, CrawlState.FINISHED)
    return bool(survey.pushed) and is_open and not survey.progress.left


def came_and_went(before: Survey, now: Survey) -> bool:
    """Whether there is nothing left of what was done a moment ago, as where a start is fed slowly or URLs are pushed
    one by one: the next ones may come any moment."""
    is_open = now.progress.state in (CrawlState.RUNNING, CrawlState.FINISHED)
    return is_open and not now.progress.left and now.progress.ended > before.progress.ended
