"""A redirect as the next task: as browsers follow it, under the rules for every link."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from shoal.exits.pools import plain_kind
from shoal.fetch.base import Response, location_of
from shoal.journey.intake import Found, Intake
from shoal.model import Task, Visit
from shoal.spider.spider import Request
from shoal.text.secrets import without_secrets
from shoal.urls.canonical import MOST_SPELLINGS, named_key, origin_of, spelling_names, spelling_turn

GET_AFTER: Final = frozenset({301, 302, 303})


class Hop(NamedTuple):
    """Where a redirect leads. `task` is None if no request may go there."""

    task: Task | None
    url: str


def hop_of(task: Task, response: Response, *, intake: Intake, into: Found) -> Hop:
    """The task that a redirect of this task leads to; a target that is kept out is counted."""
    location = location_of(response.headers)
    # A start URL may lead anywhere: people type example.com and mean the site it redirects to.
    link = intake.rules.resolve(location, response.url)
    # An unusable link has its URL cut short and without its password. So the full location is given to the intake,
    # which refuses it under the right name.
    is_usable = link.lane and link.rejected != "credentials"
    request = _next_request(task, response, link.url if is_usable else location)
    found = intake.task_of(request, into, parent=task, base=response.url, scoped=task.depth > 0)
    if found is None:
        return Hop(None, link.url)
    asked = task.visit.asked if task.visit is not None else None
    visit = found.visit if asked is None else Visit(asked=asked)
    return Hop(msgspec.structs.replace(found, hops=task.hops + 1, visit=visit), found.url)


def beside(task: Task, hop: Task) -> Task | None:
    """The hop as a task that is known by itself; None if a redirect of the task to it is a circle.

    A redirect to another spelling of its page, such as /a/ for /a, needs a name: the page's key is that of the task."""
    turn = spelling_turn(task.key, key=hop.key, url=task.url)
    if turn is None:
        return hop
    if hop.url == task.url or turn == MOST_SPELLINGS:
        return None
    return msgspec.structs.replace(hop, key=named_key(spelling_names(hop.key, hop.url)[turn]))


def _next_request(task: Task, response: Response, target: str) -> Request:
    """The request of the next hop: as browsers do it, and without secrets for another origin."""
    becomes_get = response.status in GET_AFTER and task.method not in ("GET", "HEAD")
    headers = task.headers
    # Compared after resolving: //other.example/ and /\\other.example/ look local and are not.
    if headers and not target.startswith(origin_of(response.url) + "/"):
        headers = without_secrets(headers)
    if headers and becomes_get:
        headers = {name: value for name, value in headers.items() if not name.lower().startswith("content-")}
    return Request(
        target,
        handler=task.handler,
        method="GET" if becomes_get else task.method,
        headers=headers,
        body=None if becomes_get else task.body,
        meta=task.meta,
        priority=task.priority,
        depth=task.depth,
        max_attempts=task.max_attempts,
        pool=task.pool,
        kind=plain_kind(task.kind),
        render=task.render or False,
    )
