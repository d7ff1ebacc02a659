"""The browser fetcher: requests with `render` go to a browser, all others to the HTTP fetcher."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from playwright.async_api import Error as PlaywrightError

from shoal.browser.chromium import BrowserMissingError, Chromium, RunningBrowser
from shoal.browser.page_proxy import Dialer, PageProxy
from shoal.browser.rendering import Rendering
from shoal.fetch.base import Fault, FaultKind, Fetch, Fetcher, Response
from shoal.fetch.exits import ExitConfig
from shoal.fetch.faults import one_line
from shoal.fetch.guard import Lookup
from shoal.model import DIRECT
from shoal.settings.table import Settings

CLOSE_SECONDS: Final = 5.0
MAX_SUSPECTS: Final = 1000


class BrowserFetcher:
    """Fetches pages with a Chromium, through the exits of their leases; the guard checks every connection."""

    def __init__(
        self,
        plain: Fetcher,
        *,
        program: str,
        settings: Settings,
        exits: Mapping[str, ExitConfig] | None = None,
        resolver: Lookup | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plain = plain
        self._settings = settings
        self._exits = exits or {}
        self._clock = clock
        self._dialer = Dialer(settings, lookup=resolver, clock=clock)
        self.chromium = Chromium(program, settings)
        self._suspects: dict[str, None] = {}

    async def fetch(self, request: Fetch) -> Response | Fault:
        """Send the request and read the whole response, within every limit. Follows no redirect."""
        if request.render is None:
            return await self._plain.fetch(request)
        started = self._clock()
        try:
            answer = await self._rendered(request)
        except BrowserMissingError as error:
            # Neither the page's fault nor its host's: the task is released.
            answer = Fault(kind=FaultKind.SHORTAGE, message=f"no browser can be started: {error}")
        except Exception as error:  # the contract: a fault is a value
            message = one_line(str(error) or type(error).__name__)[:200]
            answer = Fault(kind=FaultKind.LOCAL, message=f"the browser cannot be used: {message}")
        return msgspec.structs.replace(answer, elapsed=self._clock() - started)

    async def warm(self) -> None:
        """Start a browser for the first page."""
        await self.chromium.warm()

    async def close(self) -> None:
        """Stop the browser, close idle connections."""
        await self.chromium.close()
        await self._dialer.close()
        await self._plain.close()

    async def _rendered(self, request: Fetch) -> Response | Fault:
        config = None
        if request.exit != DIRECT:
            config = self._exits.get(request.exit)
            if config is None:
                message = f"{request.exit}: this worker's proxies and accounts have no such exit"
                return Fault(kind=FaultKind.EXIT, message=message)
            if config.kind == "gateway":
                message = f"{request.exit}: a gateway fetches pages itself, so a browser cannot leave through it"
                return Fault(kind=FaultKind.BAD_URL, message=message)
            if config.user_agent and not any(name.lower() == "user-agent" for name in request.headers or {}):
                headers = {**(request.headers or {}), "User-Agent": config.user_agent}
                request = msgspec.structs.replace(request, headers=headers)
        async with self.chromium.lend(alone=request.url in self._suspects) as running:
            answer = await self._in_browser(running, request, config)
            self._suspect(request.url, is_suspect=running.has_died)
            return answer

    async def _in_browser(self, running: RunningBrowser, request: Fetch, config: ExitConfig | None) -> Response | Fault:
        page_proxy = PageProxy(
            self._dialer,
            config=config,
            most_bytes=self._settings.render_bytes,
            exceeded=lambda reason: rendering.give_up(reason),
        )
        rendering = Rendering(running, request, page_proxy=page_proxy, settings=self._settings)
        try:
            proxy = await page_proxy.open()
            answer = await self._within_limits(rendering, running, proxy)
            requests, refused = rendering.requests, page_proxy.refused
            return msgspec.structs.replace(answer, page_requests=requests, page_refused=refused)
        except Exception:
            running.note_end(is_driver=True)
            raise
        finally:
            await self._leave(rendering, running)
            await page_proxy.close()

    async def _within_limits(self, rendering: Rendering, running: RunningBrowser, proxy: str) -> Response | Fault:
        render = rendering.render
        seconds = render.seconds or self._settings.render_seconds
        work = asyncio.ensure_future(rendering.run(proxy))
        limit = asyncio.ensure_future(rendering.given_up.wait())
        end = asyncio.ensure_future(running.wait_for_its_end())
        try:
            await asyncio.wait({work, limit, end}, timeout=seconds or None, return_when=asyncio.FIRST_COMPLETED)
            if running.has_died:
                # With several open pages the cause is unknown: no page loses an attempt.
                kind = FaultKind.BROWSER if running.blames_page else FaultKind.LOCAL
                return Fault(kind=kind, message="the browser died while it rendered the page")
            if (fault := rendering.limit_fault()) is not None:
                return fault
            if work.done():
                return work.result()
            return Fault(kind=FaultKind.TIMEOUT_TOTAL, message=f"not rendered within {seconds:g} s (render_seconds)")
        except PlaywrightError as error:
            return Fault(kind=FaultKind.BROWSER, message=one_line(error.message)[:200])
        finally:
            for task in (work, limit, end):
                task.cancel()
            await asyncio.gather(work, limit, end, return_exceptions=True)

    def _suspect(self, url: str, *, is_suspect: bool) -> None:
        """A page whose browser died gets a browser of its own next time: if that dies, too, the page is the cause."""
        if not is_suspect:
            self._suspects.pop(url, None)
        elif len(self._suspects) < MAX_SUSPECTS:
            self._suspects[url] = None

    async def _leave(self, rendering: Rendering, running: RunningBrowser) -> None:
        """Close the page. A browser that does not close it gets no more pages."""
        if rendering.context is None or running.has_died:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                with contextlib.suppress(PlaywrightError):
                    await rendering.context.close()
        except TimeoutError:
            self.chromium.retire(running)
