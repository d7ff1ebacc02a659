"""Redirects: as the next task; or, where a site only wants to set a cookie, followed at once within the lease.

Every hop of a redirect is a task, known once by its key. So a page that redirects back to itself, directly or through a
page that sets a cookie, would never be fetched. The worker that has the cookie follows these redirects in one lease.
Each request takes a start slot and obeys scope and robots.txt. A free retry may go to a worker without the cookie; a
key made of URL and cookies would make pages with a rolling session id new for ever.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final, Literal, NamedTuple

import msgspec

from shoal.exits.passage import Passage
from shoal.exits.pools import plain_kind
from shoal.exits.refusals import Refused
from shoal.exits.site_cookies import SiteVisit, names_cookies, site_of_url
from shoal.fetch.base import REDIRECTS, Fault, Fetch, Response, location_of
from shoal.journey.intake import Found, Intake
from shoal.journey.robots import LaneRules
from shoal.model import Lease, Task, Visit
from shoal.settings.table import Settings
from shoal.spider.spider import Request
from shoal.text.secrets import without_secrets
from shoal.urls.canonical import MOST_SPELLINGS, named_key, origin_of, spelling_names, spelling_turn

GET_AFTER: Final = frozenset({301, 302, 303})
TURNED_AWAY: Final = frozenset({401, 403})
WALL_STATUSES: Final = REDIRECTS | TURNED_AWAY
# Some sites set a new cookie with every answer: after so many walks in a row without a page, no more are tried.
MAX_FRUITLESS: Final = 3
# A form that is sent twice may order twice.
ASKED_AGAIN: Final = frozenset({"GET", "HEAD"})
WALLS_REMEMBERED: Final = 4096

# How a walk begins: the same page again; a redirect back to the page or its predecessor; a redirect to another page; a
# redirect to a gate: a page that other pages redirect to as well.
Beginning = Literal["again", "back", "elsewhere", "gate"]
Wall = tuple[str, str, Beginning]  # an exit, a site, and how walks begin there


class Hop(NamedTuple):
    """Where a redirect leads. `task` is None if no request may go there."""

    task: Task | None
    url: str


def hop_of(task: Task, response: Response, *, intake: Intake, into: Found) -> Hop:
    """The task that a redirect leads to; a rejected target is counted in `into`."""
    location = location_of(response.headers)
    # A start URL may lead anywhere: people type example.com and mean the site it redirects to.
    link = intake.rules.resolve(location, response.url)
    # The URL of an unusable link is cut and has no password: the intake gets the full location, to name the reason.
    is_usable = link.lane and link.rejected != "credentials"
    request = _next_request(task, response, link.url if is_usable else location)
    found = intake.task_of(request, into, parent=task, base=response.url, scoped=task.depth > 0)
    if found is None:
        return Hop(None, link.url)
    asked = task.visit.asked if task.visit is not None else None
    visit = found.visit if asked is None else Visit(asked=asked)
    return Hop(msgspec.structs.replace(found, hops=task.hops + 1, visit=visit), found.url)


def beside(task: Task, hop: Task) -> Task | None:
    """The hop as a task with a key of its own; None: the redirect is a circle.

    A redirect to another spelling of the page, such as /a/ for /a, needs a named key: its own key is the task's."""
    turn = spelling_turn(task.key, key=hop.key, url=task.url)
    if turn is None:
        return hop
    if hop.url == task.url or turn == MOST_SPELLINGS:
        return None
    return msgspec.structs.replace(hop, key=named_key(spelling_names(hop.key, hop.url)[turn]))


def _next_request(task: Task, response: Response, target: str) -> Request:
    """The request of the next hop, as browsers make it; without secret headers for another origin."""
    becomes_get = response.status in GET_AFTER and task.method not in ("GET", "HEAD")
    headers = task.headers
    # Compared after resolving: //other.example/ and /\\other.example/ are another origin.
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


class CookieWalls:
    """Follows the redirects of sites that set a cookie first, in one lease."""

    def __init__(self, *, intake: Intake, lane_rules: LaneRules, settings: Settings, needs_rules: bool) -> None:
        self._intake = intake
        self._lane_rules = lane_rules
        self._most_hops = settings.max_redirects
        self._handled = frozenset(settings.handle_statuses)
        self._needs_rules = needs_rules
        self._redirected: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._trials: OrderedDict[Wall, _Trials] = OrderedDict()

    async def behind(self, lease: Lease, passage: Passage, answer: Response) -> Response | Fault:
        """The page behind the cookie wall; the answer itself if it is no wall, or the walk finds no page."""
        visit, task = passage.last_visit, lease.task
        if visit is None or task.method not in ASKED_AGAIN or names_cookies(task.headers):
            return answer
        if answer.status in self._handled:
            return answer  # a handler gets it
        has_cookies = visit.has_new or visit.sent != "" or passage.cookies_for(task.url) != ""
        if not has_cookies and not self._leads_to_gate(lease, answer):
            return answer  # most sites: no cookie is involved
        walk = _Walk(lease, passage, visit, is_at_gate=not has_cookies)
        following = await self._following(walk, task, answer)
        if following is None:
            return answer
        trials = self._trials_of((lease.exit, site_of_url(task.url), walk.beginning(following, answer)))
        if not trials.has_led_to_a_page:
            async with trials.one_at_a_time:
                if not trials.has_led_to_a_page:
                    return await self._tried(trials, walk, following, answer)
        return await self._tried(trials, walk, following, answer)

    async def _tried(self, trials: _Trials, walk: _Walk, following: Task, answer: Response) -> Response | Fault:
        if trials.fruitless >= MAX_FRUITLESS:
            return answer
        found = await self._go(walk, following, answer)
        trials.note(has_page=isinstance(found, Response) and found.status not in WALL_STATUSES)
        return found

    async def _go(self, walk: _Walk, following: Task | None, first: Response) -> Response | Fault:
        """Send requests until the page is there or the walk ends; returns the page's last answer."""
        found: Response | Fault = first
        for _ in range(self._most_hops):
            if following is None or not await self._lane_rules.wait_for_slot(walk.lease, following.url):
                break
            answer = await walk.ask(following)
            if isinstance(answer, Refused):
                break
            if following.key in walk.home:
                found = answer
            task, following = following, None
            if isinstance(answer, Response) and answer.status in WALL_STATUSES:
                following = await self._following(walk, task, answer)
            if following is None and found is first and walk.was_sent_on(task, answer):
                following = walk.lease.task
        return found

    async def _following(self, walk: _Walk, task: Task, answer: Response) -> Task | None:
        """The next request of the walk after this answer; None: the walk ends."""
        if answer.status in TURNED_AWAY:
            is_first = not walk.was_turned_away and task.key == walk.lease.task.key
            walk.was_turned_away = True
            return task if is_first and walk.is_untried(task) else None
        hop = hop_of(task, answer, intake=self._intake, into=Found()).task if "location" in answer.headers else None
        if hop is None or site_of_url(hop.url) != site_of_url(walk.lease.task.url) or not walk.is_untried(hop):
            return None
        comes_back = hop.key in walk.home and walk.passage.cookies_for(hop.url) != ""
        if not comes_back and not walk.has_new_cookies and not walk.is_at_gate:
            return None
        return hop if await self._is_allowed(walk.lease.crawl, hop) else None

    def _leads_to_gate(self, lease: Lease, answer: Response) -> bool:
        """Whether another page redirected to the same URL: as a known task it would be dropped, though it may be where
        every page gets its cookie."""
        if "location" not in answer.headers or answer.status in TURNED_AWAY:
            return False
        hop = hop_of(lease.task, answer, intake=self._intake, into=Found()).task
        if hop is None or spelling_turn(lease.task.key, key=hop.key, url=lease.task.url) is not None:
            return False  # the same page in another spelling
        first = self._redirected.setdefault((lease.exit, hop.key), lease.task.key)
        if len(self._redirected) > WALLS_REMEMBERED:
            self._redirected.popitem(last=False)
        return first != lease.task.key

    async def _is_allowed(self, crawl: str, task: Task) -> bool:
        robots = await self._lane_rules.of_lane(crawl, task.lane) if self._needs_rules else None
        return not self._needs_rules or (robots is not None and robots.allows(task.url))

    def _trials_of(self, wall: Wall) -> _Trials:
        trials = self._trials.setdefault(wall, _Trials())
        self._trials.move_to_end(wall)
        if len(self._trials) > WALLS_REMEMBERED:
            self._trials.popitem(last=False)
        return trials


class _Trials:
    """The results of walks of one kind on one site. Until one finds a page they run one at a time: else all pages in
    flight would try in vain."""

    __slots__ = ("fruitless", "has_led_to_a_page", "one_at_a_time")

    def __init__(self) -> None:
        self.fruitless = 0
        self.has_led_to_a_page = False
        self.one_at_a_time = asyncio.Lock()

    def note(self, *, has_page: bool) -> None:
        """Count the end of a walk."""
        self.fruitless = 0 if has_page else self.fruitless + 1
        self.has_led_to_a_page = has_page


class _Walk:
    """The further requests of one lease. `home`: the keys of its page and of the page that redirected to it."""

    def __init__(self, lease: Lease, passage: Passage, visit: SiteVisit, *, is_at_gate: bool) -> None:
        self.lease = lease
        self.is_at_gate = self._began_at_gate = is_at_gate
        self.passage = passage
        self.was_turned_away = False
        self.home = {lease.task.key, lease.task.parent} if lease.task.hops else {lease.task.key}
        # Or another page got cookies while this one was in flight.
        self.has_new_cookies = visit.has_new or passage.cookies_for(lease.task.url) != visit.sent
        self._steps = 0
        self._tried = {(lease.task.key, visit.sent)}

    def beginning(self, following: Task, answer: Response) -> Beginning:
        if answer.status in TURNED_AWAY:
            return "again"
        if self.is_at_gate:
            return "gate"
        return "back" if following.key in self.home else "elsewhere"

    def is_untried(self, task: Task) -> bool:
        """Whether the task was not requested yet with its present cookies: else the walk is a circle."""
        return (task.key, self.passage.cookies_for(task.url)) not in self._tried

    def was_sent_on(self, task: Task, answer: Response | Fault) -> bool:
        """Whether the walk ended elsewhere, with cookies that the page itself was not requested with: request it again.
        Sites that keep the return URL in a cookie confuse concurrent pages."""
        if isinstance(answer, Fault) or task.key in self.home:
            return False
        is_on = self._steps > 1 or answer.status in REDIRECTS or self._began_at_gate
        return is_on and self.is_untried(self.lease.task)

    async def ask(self, task: Task) -> Response | Fault | Refused:
        """Send the request of a task."""
        self._steps += 1
        self.is_at_gate = False
        self._tried.add((task.key, self.passage.cookies_for(task.url)))
        answer = await self.passage.fetch(
            Fetch(url=task.url, method=task.method, headers=task.headers, body=task.body, exit=self.lease.exit)
        )
        visit = self.passage.last_visit
        self.has_new_cookies = self.has_new_cookies or (visit is not None and visit.has_new)
        return answer
