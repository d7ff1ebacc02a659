"""Every operation of the API, in one table."""

from __future__ import annotations

import msgspec

from shoal.duties.schedules.config import ScheduleKeys
from shoal.duties.schedules.views import ScheduleShown
from shoal.insight.advice import Advice
from shoal.serve.api import shapes
from shoal.serve.api.crawls import (
    cancel_crawl,
    delete_crawl,
    list_crawls,
    pause_crawl,
    prioritise_crawl,
    rerun_crawl,
    resume_crawl,
    show_advice,
    show_crawl,
    start_crawl,
)
from shoal.serve.api.hosts import change_host, list_hosts
from shoal.serve.api.operations import Handle, Operation
from shoal.serve.api.results import list_items, show_page
from shoal.serve.api.schedules import (
    AskedRun,
    ScheduleRuns,
    Schedules,
    create_schedule,
    delete_schedule,
    list_schedules,
    pause_schedule,
    resume_schedule,
    run_schedule,
    show_schedule,
    show_schedule_history,
)
from shoal.serve.api.server import show_health, show_metrics, show_readiness, show_status, sign_in, sign_out, watch
from shoal.serve.api.tasks import drop_dead, explain_url, list_dead, list_rejected, requeue_dead
from shoal.serve.api.urls import LINES, TEXT, add_urls
from shoal.serve.api.workers import list_exits, list_workers, show_history

ONE = "/crawls/{crawl}"
SCHEDULE = "/schedules/{schedule}"
MISSING = (404, 409)


def _look(
    path: str, handle: Handle, answer: type[msgspec.Struct], query: type[msgspec.Struct] = shapes.NoQuery
) -> Operation:
    return Operation(method="GET", path=ONE + path, handle=handle, answer=answer, query=query, errors=MISSING)


def _change(
    path: str, handle: Handle, answer: type[shapes.Shape], body: type[msgspec.Struct] | None = None
) -> Operation:
    return Operation(method="POST", path=ONE + path, handle=handle, answer=answer, body=body, errors=MISSING)


OPERATIONS = (
    Operation(method="GET", path="/status", handle=show_status, answer=shapes.Status),
    Operation(
        method="POST",
        path="/session",
        handle=sign_in,
        answer=shapes.SignedIn,
        body=shapes.SignIn,
        status=201,
        errors=(401, 429),
    ),
    Operation(method="DELETE", path="/session", handle=sign_out, answer=None, status=204),
    Operation(method="GET", path="/crawls", handle=list_crawls, answer=shapes.Crawls, query=shapes.Page),
    Operation(
        method="POST",
        path="/crawls",
        handle=start_crawl,
        answer=shapes.StartedCrawl,
        body=shapes.StartCrawl,
        status=201,
        errors=(409,),
    ),
    _look("", show_crawl, shapes.CrawlDetail),
    Operation(method="DELETE", path=ONE, handle=delete_crawl, answer=None, status=204, errors=MISSING),
    _change("/pause", pause_crawl, shapes.CrawlSummary),
    _change("/resume", resume_crawl, shapes.CrawlSummary),
    _change("/cancel", cancel_crawl, shapes.CrawlSummary),
    _change("/priority", prioritise_crawl, shapes.CrawlSummary, shapes.PriorityGiven),
    Operation(
        method="POST",
        path=f"{ONE}/rerun",
        handle=rerun_crawl,
        answer=shapes.StartedCrawl,
        status=201,
        errors=MISSING,
    ),
    _look("/history", show_history, shapes.History, shapes.HistoryQuery),
    _look("/advice", show_advice, Advice),
    _look("/workers", list_workers, shapes.Workers),
    _look("/hosts", list_hosts, shapes.Hosts, shapes.HostsQuery),
    Operation(
        method="PUT",
        path=f"{ONE}/hosts/{{host}}",
        handle=change_host,
        answer=shapes.HostShown,
        body=shapes.HostChange,
        errors=MISSING,
    ),
    _look("/exits", list_exits, shapes.Exits, shapes.Page),
    _look("/items", list_items, shapes.Items, shapes.ItemsQuery),
    _look("/dead", list_dead, shapes.Letters, shapes.LettersQuery),
    _change("/dead/requeue", requeue_dead, shapes.Requeued, shapes.LetterChoice),
    _change("/dead/drop", drop_dead, shapes.Dropped, shapes.LetterChoice),
    _look("/rejected", list_rejected, shapes.Rejected),
    _look("/why", explain_url, shapes.Fates, shapes.FateQuery),
    Operation(
        method="GET", path=f"{ONE}/page", handle=show_page, answer="text/plain", query=shapes.PageQuery, errors=MISSING
    ),
    Operation(
        method="POST",
        path=f"{ONE}/urls",
        handle=add_urls,
        answer=shapes.AddedUrls,
        body=(TEXT, LINES),
        errors=MISSING,
        refusal=shapes.AddedUrls,
    ),
    Operation(method="GET", path="/schedules", handle=list_schedules, answer=Schedules),
    Operation(
        method="POST",
        path="/schedules",
        handle=create_schedule,
        answer=ScheduleShown,
        body=ScheduleKeys,
        status=201,
        errors=(409,),
    ),
    Operation(method="GET", path=SCHEDULE, handle=show_schedule, answer=ScheduleShown, errors=MISSING),
    Operation(method="DELETE", path=SCHEDULE, handle=delete_schedule, answer=None, status=204, errors=MISSING),
    Operation(
        method="GET", path=f"{SCHEDULE}/history", handle=show_schedule_history, answer=ScheduleRuns, errors=MISSING
    ),
    Operation(method="POST", path=f"{SCHEDULE}/run", handle=run_schedule, answer=AskedRun, status=202, errors=MISSING),
    Operation(method="POST", path=f"{SCHEDULE}/pause", handle=pause_schedule, answer=ScheduleShown, errors=MISSING),
    Operation(method="POST", path=f"{SCHEDULE}/resume", handle=resume_schedule, answer=ScheduleShown, errors=MISSING),
    Operation(
        method="GET", path="/events", handle=watch, answer="text/event-stream", query=shapes.Watched, errors=MISSING
    ),
    Operation(method="GET", path="/metrics", handle=show_metrics, answer="text/plain", prefix=""),
    Operation(method="GET", path="/healthz", handle=show_health, answer=shapes.Health, prefix=""),
    Operation(
        method="GET",
        path="/readyz",
        handle=show_readiness,
        answer=shapes.Health,
        prefix="",
        errors=(503,),
        refusal=shapes.Health,
    ),
)
