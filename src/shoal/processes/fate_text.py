"""What became of a URL, in one sentence and as a document."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.frontier.rules.tasks import BAD_RECORD, WORKER_LOST, is_suspect
from shoal.model import HTTP, STAGE, TaskState, TaskStatus
from shoal.processes.url_fate import KNOWN_TTL, SKIP_KNOWN, Fate
from shoal.text.errors import duration, several
from shoal.text.secrets import MASK, masked_headers
from shoal.urls.scope import RAISED_BY, REASONS


def document(fate: Fate) -> dict[str, Any]:
    """For scripts."""
    task = fate.task.task
    if task is not None:
        # A request's headers and body may hold secrets that are only for its site.
        headers = masked_headers(task.headers) if task.headers else None
        # Bytes in it are no spider's own: what an integration keeps of its requests, cookies too.
        meta = {name: MASK if isinstance(value, bytes) else value for name, value in (task.meta or {}).items()}
        body = MASK.encode() if task.body else None
        task = msgspec.structs.replace(task, headers=headers, body=body, meta=meta or None)
        fate = msgspec.structs.replace(fate, task=msgspec.structs.replace(fate.task, task=task))
    values: dict[str, Any] = msgspec.to_builtins(fate)
    return {"state": fate.state, "sentence": sentence(fate), **values}


def sentence(fate: Fate) -> str:
    """What became of the URL, in one sentence."""
    task, outcome = fate.task, fate.fetch.outcome if fate.fetch else ""
    match fate.state:
        case TaskState.UNKNOWN if fate.fetch is not None:
            return f"was done ({outcome}) and is forgotten since (dedup_ttl): the next link to it lets it in again"
        case TaskState.UNKNOWN:
            return _why_unknown(fate)
        case TaskState.DONE:
            return _why_done(fate)
        case TaskState.DEAD if task.reason == BAD_RECORD:
            return f"dead ({BAD_RECORD}): its record in the frontier could not be read and was set aside"
        case TaskState.DEAD:
            return f"dead after {several(task.attempts, 'attempt')}: {task.reason}{_death(task)}"
        case TaskState.LEASED:
            return f"in flight, attempt {task.attempts}, with {task.worker}{_lost(task)}"
        case TaskState.DELAYED:
            last = f" after {several(task.attempts, 'attempt')}" if task.attempts else ""
            if task.task is not None and task.task.visit is not None and task.task.visit.visits and not task.reason:
                visits = several(task.task.visit.visits, "time")
                return f"visited {visits}: the next visit is due in {duration(task.due_in)}{last}"
            return f"waiting for {duration(task.due_in)}{last}{f': {task.reason}' if task.reason else ''}"
        case TaskState.CANCELLED:
            return "set aside when the crawl was cancelled"
        case _:
            return f"{_queued(task)}{_lost(task)}"


def _queued(status: TaskStatus) -> str:
    """What a task waits for."""
    task = status.task
    if task is not None and STAGE in task.lane:
        return f"fetched: its page waits for its handler {task.handler}, which runs in workers of the kind {task.kind}"
    if task is not None and task.kind != HTTP:
        return f"queued: it waits for its turn in its lane, and for a worker of the kind {task.kind}"
    return "queued: it waits for its turn in its lane"


def _death(task: TaskStatus) -> str:
    """What a page did that ended its worker each time."""
    if not task.reason.startswith(WORKER_LOST) or task.task is None:
        return ""
    return (
        f"; at each attempt the worker process ended while it had only this page, for its handler {task.task.handler}"
    )


def _why_done(fate: Fate) -> str:
    if fate.untold == SKIP_KNOWN:
        return "not fetched: an earlier crawl of the spider has done it (--skip-known)"
    if fate.fetch is None:
        if fate.set_aside:
            return f"done, or lost with a record of the crawl: {fate.set_aside}"
        return "done: nothing more is known of it"
    match fate.fetch.outcome:
        case "redirected":
            return f"done: it redirects to {fate.fetch.final_url}"
        case "robots":
            return f"not fetched: {_reason('robots')}"
        case "not_modified":
            return "done: the site says that it has not changed since it was last fetched (304)"
        case outcome:
            return f"done: {outcome or 'nothing more is known of it'}"


def _lost(task: TaskStatus) -> str:
    """What is known of leases of this task that were lost with their workers."""
    if not task.losses:
        return ""
    cause = task.reason.removeprefix(WORKER_LOST).removeprefix(": ") if task.reason.startswith(WORKER_LOST) else ""
    before = f"; it was lost with its worker before{f' ({cause})' if cause else ''}"
    return f"{before}, so it is lent alone" if is_suspect(task.losses) else before


def _why_unknown(fate: Fate) -> str:
    if fate.kept_out is not None:
        return f"kept out ({fate.kept_out}): {_reason(fate.kept_out)}{_raised_by([fate.kept_out])}"
    if fate.untold == KNOWN_TTL:
        return (
            "not known any more: the crawl has forgotten its URLs since its end (known_ttl), and the fetch log that can"
            " be read here has no line of this one"
        )
    if fate.maybe:
        reasons = "; or ".join(f"{name}: {_reason(name)}" for name in fate.maybe)
        known = f"not known: never found, or kept out by one of the limits that were reached ({reasons})"
        return known + _raised_by(fate.maybe)
    return "never found: no rule keeps it out, but no page, source or command has named it"


def _reason(name: str) -> str:
    return REASONS.get(name, name)


def _raised_by(names: list[str]) -> str:
    """How to raise the limits that kept URLs out."""
    settings = [f"--set {RAISED_BY[name]}=N" for name in names if name in RAISED_BY]
    if not settings:
        return ""
    return f"; to let in more, run the command that began the crawl again with --again and {' or '.join(settings)}"
