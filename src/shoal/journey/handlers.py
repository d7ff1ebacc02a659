"""Runs a spider's handlers: plain or async, generator or list, each within its deadline."""

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
from shoal.journey.alarm import Alarm, HandlerOverrun, HandlerTimeout, NoWitness, Stepwise, Witness
from shoal.journey.cpu_shares import WatchedHarvest, WatchedPage
from shoal.journey.harvest import Harvest
from shoal.journey.intake import Intake
from shoal.journey.item_fields import is_item
from shoal.journey.notes import PageNotes
from shoal.journey.plain_requests import HandlerNames
from shoal.journey.sitemaps import PAGES, SITEMAP, take_page_range, take_sitemap
from shoal.spider.follow import Follow, FollowRequests
from shoal.spider.page import Page
from shoal.spider.session import Session
from shoal.spider.spider import Request, Spider, StopCrawl
from shoal.text.errors import code_line_of, line_of

LOGIN_SECONDS = 300.0  # long, because the requests of a login wait for their start slots


class HandlerGaveUp(Exception):  # noqa: N818 -- reads as what happened
    """A handler ended with an exception that would end the worker, too: sys.exit(), a KeyboardInterrupt that its code
    raises, a panic in a library written in Rust."""


class Handlers:
    """The handlers of one spider, found by the names that tasks carry."""

    def __init__(
        self, spider: Spider, *, intake: Intake, item_key: str, seconds: float, witness: Witness | None = None
    ) -> None:
        self._spider = spider
        self._witness = witness or NoWitness()
        self._intake = intake
        self._item_key = item_key
        self._seconds = seconds
        self._alarm = Alarm(seconds)
        self._names = HandlerNames(spider)
        self._notes = PageNotes()
        self._files = _files_of(type(spider))

    async def run(self, page: Page, *, token: int = 0) -> Harvest:
        """Everything the page's handler gives. Raises what the handler raises. The witness hears of the page as the
        one with this token."""
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
        """The innermost line of the spider's own code in an error's traceback, as books.py:14; empty: there is none."""
        return code_line_of(error, files=self._files)

    async def log_in(self, session: Session) -> None:
        """Let the spider log an account in. Raises what `login` raises, and LoginRefused when it returns False."""
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
        """Stop the timer: no handler has a deadline from here on."""
        self._alarm.stop()

    def _handler(self, name: str) -> Callable[[Page], Any]:
        self._names.check(name)
        return getattr(self._spider, name)  # type: ignore[no-any-return]  # checked to be callable

    async def _call(self, name: str, page: Page, token: int, harvest: Harvest) -> None:
        handler, witness = self._handler(name), self._witness
        alarm = page.watch.beside(self._alarm) if isinstance(page, WatchedPage) else self._alarm
        witness.begin(token, name, page.task.url)
        try:
            with alarm:
                output = handler(page)
                if _is_generator(output):
                    _collect_from(output, harvest)
                    return
                if not inspect.isawaitable(output) and not hasattr(output, "__aiter__"):
                    _collect(output, harvest)
                    return
            slot = witness.wait(token, name, page.task.url)
            try:
                await self._finish(output, harvest, slot=slot, alarm=alarm)
            finally:
                witness.finish(slot, token)
        except StopCrawl as asked:
            harvest.take_in()
            harvest.stop = str(asked)
        except Exception:
            raise
        except BaseException as error:
            # Scripts end by sys.exit(); a handler that does so must not end the worker.
            if (ended := _ended_by(error, "handler")) is None:
                raise
            raise ended from error
        finally:
            witness.rest()

    async def _finish(self, output: Any, harvest: Harvest, *, slot: int, alarm: AbstractContextManager[None]) -> None:
        """The rest of an async handler, within its deadline as a whole and at each of its steps."""
        deadline = asyncio.timeout(self._seconds or None)
        try:
            async with deadline:
                await Stepwise(_drain(output, harvest), alarm=alarm, witness=self._witness, slot=slot)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise HandlerTimeout(f"the handler took longer than {self._seconds:g} s") from error


def _ended_by(error: BaseException, what: str) -> Exception | None:
    """What a spider's code ended with, as an exception that ends its page and nothing else; None: the worker has
    cancelled the page."""
    if isinstance(error, HandlerOverrun):
        return HandlerTimeout(str(error))
    if not isinstance(error, asyncio.CancelledError):
        return HandlerGaveUp(f"the {what} raised {line_of(error).rstrip(': ')}")
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return None
    return HandlerGaveUp(f"something that the {what} waited for was cancelled")


def _files_of(spider: type[Spider]) -> frozenset[str]:
    """The files in which the spider and the classes it derives from are written."""
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
    """Whether this is what a handler that yields gives, and no coroutine of the old kind."""
    return type(output) is GeneratorType and not output.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE


def _collect(output: Any, harvest: Harvest) -> None:
    if output is None and harvest.has_unused_follow:
        # Nobody can yield it any more.
        raise UsageError("the handler calls page.follow and gives nothing back: write `yield page.follow(…)`")
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
            if generator.gi_yieldfrom is None or not _is_whole(generator, part, harvest):
                harvest.add(part)
        except (UsageError, TypeError) as error:
            # Raised at the handler's yield, so that the traceback shows the line that yields it.
            with contextlib.suppress(StopIteration):
                generator.throw(error)
            raise
    harvest.take_in()


def _is_whole(generator: GeneratorType[Any, Any, Any], part: Any, harvest: Harvest) -> bool:
    """Whether the handler is in a `yield from page.follow(…)` at its first request, and all links were taken in.

    Then the iteration is over, and the handler goes on behind the `yield from`. Nobody else sees its requests: between
    the iterator and us there are only generators that pass on what they get."""
    inner = generator.gi_yieldfrom
    while isinstance(inner, GeneratorType):
        inner = inner.gi_yieldfrom
    if type(inner) is not FollowRequests or inner.iteration.first is not part:
        return False
    return harvest.add_whole(inner.iteration)
