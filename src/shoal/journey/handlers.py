"""Runs a spider's handlers: plain or async, generator or list, each within its deadline."""

from __future__ import annotations

import asyncio
import inspect
import re
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from shoal.journey.harvest import Harvest, is_item
from shoal.journey.intake import Found, Intake
from shoal.journey.sitemaps import parse_sitemap, sitemaps_in_robots
from shoal.page import Follow, Page
from shoal.session import Session
from shoal.spider import Request, Spider
from shoal.urls import lane_of

SITEMAP = "@sitemap"
PAGES = "@pages"
MOST_PAGES = 1_000_000
MOST_LEVELS = 3  # robots.txt, an index, an index in it, their sitemaps
MOST_ELSEWHERE = 1_000
LOGIN_SECONDS = 300.0  # its requests wait for their start slots


class HandlerTimeout(Exception):  # noqa: N818 -- reads as what happened
    """A handler took longer than `handler_seconds`."""


class HandlerGaveUp(Exception):  # noqa: N818 -- reads as what happened
    """A handler ended in a way that would end the worker, too."""


class LoginRefused(Exception):  # noqa: N818 -- reads as what happened
    """A spider's login says that the account could not be logged in."""


class Handlers:
    """The handlers of one spider, by the names that tasks remember."""

    def __init__(self, spider: Spider, *, intake: Intake, item_key: str, seconds: float) -> None:
        self._spider = spider
        self._intake = intake
        self._item_key = item_key
        self._seconds = seconds
        self._alarm = Alarm(seconds)

    async def run(self, page: Page) -> Harvest:
        """Everything the page's handler gives. Raises what the handler raises."""
        harvest = Harvest(page, intake=self._intake, item_key=self._item_key)
        name = page.task.handler
        if name == SITEMAP:
            await self._take_sitemap(page, harvest.found)
            return harvest
        if name == PAGES:
            name = page.meta["handler"]
            await self._take_page_range(page, harvest.found)
            page.meta = page.meta["meta"]
        await self._call(self._handler(name), page, harvest)
        if page.turned_away is not None:
            raise page.turned_away
        return harvest

    async def log_in(self, session: Session) -> None:
        """Let the spider log an account in. Raises what it raises, and LoginRefused when it says that it failed."""
        deadline = asyncio.timeout(LOGIN_SECONDS)
        answers: list[Any] = []
        try:
            async with deadline:
                await Stepwise(_keep(self._spider.login(session), answers), alarm=self._alarm)
        except TimeoutError as error:
            raise HandlerTimeout(f"the login took longer than {LOGIN_SECONDS:g} s") from error
        except (SystemExit, GeneratorExit) as error:
            raise HandlerGaveUp(f"the login raised {type(error).__name__}") from error
        if answers[0] is False:
            raise LoginRefused("it did not work")

    def close(self) -> None:
        """No deadlines from here on."""
        self._alarm.stop()

    def _handler(self, name: str) -> Callable[[Page], Any]:
        handler = getattr(self._spider, name, None)
        if not callable(handler):
            raise LookupError(f"{type(self._spider).__name__} has no handler {name!r}")
        return handler  # type: ignore[no-any-return]  # checked to be callable just above

    async def _call(self, handler: Callable[[Page], Any], page: Page, harvest: Harvest) -> None:
        try:
            with self._alarm:
                output = handler(page)
                if not inspect.isawaitable(output) and not hasattr(output, "__aiter__"):
                    _collect(output, harvest)
                    return
            await self._finish(output, harvest)
        except (SystemExit, GeneratorExit) as error:
            # A script's habit: it must not end the worker.
            raise HandlerGaveUp(f"the handler raised {type(error).__name__}") from error

    async def _finish(self, output: Any, harvest: Harvest) -> None:
        """The rest of an async handler, within its deadline as a whole and at each of its steps."""
        deadline = asyncio.timeout(self._seconds or None)
        try:
            async with deadline:
                await Stepwise(_drain(output, harvest), alarm=self._alarm)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise HandlerTimeout(f"the handler took longer than {self._seconds:g} s") from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Not us: something the handler waited for was cancelled.
            raise HandlerGaveUp("what the handler waited for was cancelled") from error

    async def _take_sitemap(self, page: Page, found: Found) -> None:
        handler, task = page.meta["handler"], page.task
        if page.url.endswith("/robots.txt"):
            nested, pages = sitemaps_in_robots(page.content[: self._intake.settings.max_robots_bytes]), []
        else:
            sitemap = await asyncio.to_thread(parse_sitemap, page.body, url=page.url)
            nested, pages = sitemap.sitemaps, sitemap.pages
            if sitemap.problem:
                found.reject("bad_sitemap", page.url)
        await self._take_nested(nested, page, found)
        for number, url in enumerate(pages):
            if number % 1000 == 0:
                await asyncio.sleep(0)
            self._intake.request(Request(url, handler=handler, depth=task.depth), found, parent=task, base=page.url)

    async def _take_nested(self, urls: list[str], page: Page, found: Found) -> None:
        """Sitemaps that a sitemap or a robots.txt names. The file that somebody asked for may name some on any host;
        those it leads to, only on their own or in scope, and not in a row without end."""
        task, level = page.task, page.meta.get("level", 0) + 1
        meta = {**page.meta, "level": level}
        elsewhere = 0
        for number, url in enumerate(urls):
            if number % 1000 == 0:
                await asyncio.sleep(0)
            link = self._intake.rules.resolve(url, page.url)
            if level > MOST_LEVELS:
                found.reject("sitemap_chain", link.url)
                continue
            is_elsewhere = link.lane != lane_of(page.url)
            elsewhere += is_elsewhere
            scoped = is_elsewhere and (level > 1 or elsewhere > MOST_ELSEWHERE)
            request = Request(url, handler=SITEMAP, meta=meta, depth=task.depth)
            self._intake.request(request, found, parent=task, base=page.url, scoped=scoped)

    async def _take_page_range(self, page: Page, found: Found) -> None:
        options, task = page.meta, page.task
        last = last_page(page, options["last"], options["template"])
        # More of one shape the frontier would not take; and a page may claim any number.
        most = options["first"] + (self._intake.settings.max_per_shape or MOST_PAGES)
        if last > most:
            found.reject("max_per_shape", options["template"].replace("{}", str(last)[:20]))
        for number in range(options["first"] + 1, min(last, most) + 1):
            if number % 1000 == 0:
                await asyncio.sleep(0)
            request = Request(
                options["template"].replace("{}", str(number)),
                handler=options["handler"],
                meta=options["meta"] or None,
                depth=task.depth,
                priority=task.priority,
            )
            self._intake.request(request, found, parent=task, base=page.url)


def last_page(page: Page, last: int | str, template: str) -> int:
    """The number of the last page: given, or read off an element's text, link or value."""
    if isinstance(last, int):
        return last
    elements = page.css(last)
    if not elements:
        raise LookupError(f"no element matches {last!r}, so the last page is not known")
    element = elements[-1]
    pattern = re.escape(template.rpartition("/")[2]).replace(re.escape("{}"), r"(\d+)")
    linked = re.search(pattern, element.attr("href"))
    if linked:
        return int(linked[1])
    numbers = re.findall(r"\d+", element.attr("value") or element.text())
    if not numbers:
        raise LookupError(f"the element {last!r} names no number, so the last page is not known")
    return int(numbers[-1])


class Stepwise:
    """Awaits a coroutine with the alarm set whenever its own code runs: a tight loop is no await."""

    def __init__(self, work: Coroutine[Any, Any, None], *, alarm: Alarm) -> None:
        self._work = work
        self._alarm = alarm

    def __await__(self) -> Generator[Any, Any, None]:
        step: Callable[[Any], Any] = self._work.send
        value: Any = None
        while True:
            try:
                with self._alarm:
                    waited_for = step(value)
            except StopIteration:
                return
            try:
                value = yield waited_for
                step = self._work.send
            except BaseException as error:
                value, step = error, self._work.throw


class Alarm:
    """Raises HandlerTimeout inside a plain function that runs too long, even in a tight loop or a slow regex.

    The timer runs on from page to page and is wound up again only after it rang: to set it and clear it at every
    page took 3 % of a worker's time. Signals reach the main thread alone: elsewhere there is no alarm."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_set = bool(seconds) and threading.current_thread() is threading.main_thread()
        self._until: float | None = None
        self._is_ticking = False

    def __enter__(self) -> None:
        if self._is_set:
            self._until = time.monotonic() + self._seconds
            if not self._is_ticking:
                self._wind(self._seconds)

    def __exit__(self, *_: object) -> None:
        self._until = None

    def stop(self) -> None:
        """Let the timer ring no more: nobody listens when the process ends."""
        if self._is_ticking:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._is_ticking = False

    def _wind(self, seconds: float) -> None:
        former = getattr(signal.signal(signal.SIGALRM, self._ring), "__self__", None)
        if isinstance(former, Alarm):
            # There is one timer in a process: another crawl's alarm has to wind it up again for itself.
            former._is_ticking = False
        signal.setitimer(signal.ITIMER_REAL, seconds)
        self._is_ticking = True

    def _ring(self, *_: object) -> None:
        self._is_ticking = False
        if self._until is None:
            return
        left = self._until - time.monotonic()
        if left <= 0:
            raise HandlerTimeout(f"the handler took longer than {self._seconds:g} s")
        self._wind(left)


async def _keep(work: Awaitable[Any], answers: list[Any]) -> None:
    answers.append(await work)


async def _drain(output: Any, harvest: Harvest) -> None:
    if hasattr(output, "__aiter__"):
        async for part in output:
            harvest.add(part)
    else:
        _collect(await output, harvest)


def _collect(output: Any, harvest: Harvest) -> None:
    if isinstance(output, Request | Follow) or is_item(output) or not hasattr(output, "__iter__"):
        harvest.add(output)
        return
    for part in output:
        harvest.add(part)
