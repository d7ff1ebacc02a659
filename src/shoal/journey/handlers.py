"""Runs a spider's handlers (plain or async, generator or list) and its login, each within its deadline."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from types import GeneratorType
from typing import Any, TypeGuard

from shoal.errors import UsageError
from shoal.exits.accounts import LoginRefused
from shoal.journey.alarm import Alarm, HandlerObserver, HandlerOverrun, HandlerTimeout, NoObserver, Stepwise
from shoal.journey.cpu_shares import WatchedHarvest, WatchedPage
from shoal.journey.harvest import Harvest
from shoal.journey.intake import HandlerNames, Intake
from shoal.journey.item_fields import is_item
from shoal.journey.notes import PageNotes
from shoal.journey.sitemaps import PAGES, SITEMAP, take_page_range, take_sitemap
from shoal.spider.follow import Follow, FollowRequests
from shoal.spider.page import Page
from shoal.spider.session import Session
from shoal.spider.spider import Request, Spider, StopCrawl
from shoal.text.errors import code_line_of, line_of

LOGIN_SECONDS = 300.0  # long, because the requests of a login wait for their start slots


class HandlerGaveUp(Exception):  # noqa: N818 -- reads as what happened
    """A handler raised what would end the worker, too: SystemExit, a KeyboardInterrupt, a panic of a Rust library."""


class Handlers:
    """The handlers of one spider, found by the names that tasks carry."""

    def __init__(
        self, spider: Spider, *, intake: Intake, item_key: str, seconds: float, observer: HandlerObserver | None = None
    ) -> None:
        self._spider = spider
        self._observer = observer or NoObserver()
        self._intake = intake
        self._item_key = item_key
        self._seconds = seconds
        self._alarm = Alarm(seconds)
        self._names = HandlerNames(spider)
        self._notes = PageNotes()
        self._files = _files_of(type(spider))

    async def run(self, page: Page, *, token: int = 0) -> Harvest:
        """Run the page's handler and collect its output. Raises what the handler raises. token: that of the lease."""
        intake, item_key = self._intake, self._item_key
        if isinstance(page, WatchedPage):
            harvest: Harvest = WatchedHarvest(page, intake=intake, item_key=item_key, names=self._names)
        else:
            harvest = Harvest(page, intake=intake, item_key=item_key, names=self._names)
        name = page.task.handler
        if name == SITEMAP:
            harvest.problem = await take_sitemap(page, harvest.found, intake=self._intake)
            if harvest.problem:
                harvest.notes = self._notes.of_sitemap(harvest.problem)
            return harvest
        if name == PAGES:
            name = page.meta["handler"]
            await take_page_range(page, harvest.found, intake=self._intake)
            page.meta = page.meta["meta"]
        await self._call(name, page, token, harvest)
        if page.turned_away is not None and not harvest.stop:
            raise page.turned_away
        harvest.notes = self._notes.of(page, harvest, handler=name)
        return harvest

    def code_line_of(self, error: BaseException) -> str:
        """The innermost line of the spider's own code in an error's traceback, as books.py:14; empty: none."""
        return code_line_of(error, files=self._files)

    async def log_in(self, session: Session) -> None:
        """Run the spider's `login`. Raises what it raises, and LoginRefused if it returns False."""
        deadline = asyncio.timeout(LOGIN_SECONDS)
        answers: list[Any] = []
        try:
            async with deadline:
                await Stepwise(_keep(self._spider.login(session), answers), alarm=self._alarm)
        except TimeoutError as error:
            raise HandlerTimeout(f"the login took longer than {LOGIN_SECONDS:g} s") from error
        except Exception:
            raise
        except BaseException as error:
            if (ended := _ended_by(error, "login")) is None:
                raise
            raise ended from error
        if answers[0] is False:
            raise LoginRefused("the spider's login returned False")

    def close(self) -> None:
        """Stop the timer of the deadlines."""
        self._alarm.stop()

    def _handler(self, name: str) -> Callable[[Page], Any]:
        self._names.check(name)
        return getattr(self._spider, name)  # type: ignore[no-any-return]  # checked to be callable

    async def _call(self, name: str, page: Page, token: int, harvest: Harvest) -> None:
        handler, observer = self._handler(name), self._observer
        alarm = page.watch.beside(self._alarm) if isinstance(page, WatchedPage) else self._alarm
        observer.begin(token, name, page.task.url)
        try:
            with alarm:
                output = handler(page)
                if _is_generator(output):
                    _collect_from(output, harvest)
                    return
                if not inspect.isawaitable(output) and not hasattr(output, "__aiter__"):
                    _collect(output, harvest)
                    return
            slot = observer.wait(token, name, page.task.url)
            try:
                await self._finish(output, harvest, slot=slot, alarm=alarm)
            finally:
                observer.finish(slot, token)
        except StopCrawl as asked:
            harvest.take_in()
            harvest.stop = str(asked)
        except Exception:
            raise
        except BaseException as error:
            if (ended := _ended_by(error, "handler")) is None:
                raise
            raise ended from error
        finally:
            observer.rest()

    async def _finish(self, output: Any, harvest: Harvest, *, slot: int, alarm: AbstractContextManager[None]) -> None:
        """Await an async handler: the deadline holds for the whole and for each step."""
        deadline = asyncio.timeout(self._seconds or None)
        try:
            async with deadline:
                await Stepwise(_drain(output, harvest), alarm=alarm, observer=self._observer, slot=slot)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise HandlerTimeout(f"the handler took longer than {self._seconds:g} s") from error


def _ended_by(error: BaseException, what: str) -> Exception | None:
    """A BaseException of a spider's code as an Exception, which ends only the page; None: the worker cancelled it."""
    if isinstance(error, HandlerOverrun):
        return HandlerTimeout(str(error))
    if not isinstance(error, asyncio.CancelledError):
        return HandlerGaveUp(f"the {what} raised {line_of(error).rstrip(': ')}")
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return None
    return HandlerGaveUp(f"something that the {what} waited for was cancelled")


def _files_of(spider: type[Spider]) -> frozenset[str]:
    """The source files of the spider's class and its base classes."""
    names = [kind.__module__ for kind in spider.__mro__ if kind not in (Spider, object)]
    own = [name for name in names if name.partition(".")[0] not in sys.stdlib_module_names]
    files = (getattr(sys.modules.get(name), "__file__", None) for name in own)
    return frozenset(os.path.abspath(file) for file in files if file)


async def _keep(work: Awaitable[Any], answers: list[Any]) -> None:
    answers.append(await work)


async def _drain(output: Any, harvest: Harvest) -> None:
    if not hasattr(output, "__aiter__"):
        _collect(await output, harvest)
        return
    async for part in output:
        try:
            harvest.add(part)
        except (UsageError, TypeError) as error:
            if inspect.isasyncgen(output):
                with contextlib.suppress(StopAsyncIteration):
                    await output.athrow(error)
            raise
    harvest.take_in()


def _is_generator(output: Any) -> TypeGuard[GeneratorType[Any, Any, Any]]:
    """Whether this is a generator, and not a coroutine made by `types.coroutine`."""
    return type(output) is GeneratorType and not output.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE


def _collect(output: Any, harvest: Harvest) -> None:
    if output is None and harvest.has_unused_follow:
        raise UsageError("the handler calls page.follow and returns nothing: write `yield page.follow(…)`")
    if isinstance(output, Request | Follow) or is_item(output) or not hasattr(output, "__iter__"):
        harvest.add(output)
    elif isinstance(output, GeneratorType):
        _collect_from(output, harvest)
    else:
        for part in output:
            harvest.add(part)
        harvest.take_in()


def _collect_from(generator: GeneratorType[Any, Any, Any], harvest: Harvest) -> None:
    for part in generator:
        try:
            if generator.gi_yieldfrom is None or not _took_whole_follow(generator, part, harvest):
                harvest.add(part)
        except (UsageError, TypeError) as error:
            # Raised at the handler's yield, so that the traceback shows the line that yields it.
            with contextlib.suppress(StopIteration):
                generator.throw(error)
            raise
    harvest.take_in()


def _took_whole_follow(generator: GeneratorType[Any, Any, Any], part: Any, harvest: Harvest) -> bool:
    """Take in all links of a `yield from page.follow(…)` at its first request; False: request by request instead.

    If True, the iteration is over and the handler goes on after the `yield from`. No code misses the requests: between
    the iterator and here are only generators that delegate by `yield from`."""
    inner = generator.gi_yieldfrom
    while isinstance(inner, GeneratorType):
        inner = inner.gi_yieldfrom
    if type(inner) is not FollowRequests or inner.iteration.first is not part:
        return False
    return harvest.add_whole(inner.iteration)
