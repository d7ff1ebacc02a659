"""Rendered pages behind the fetcher's contract: a request with `render` goes to a browser, any other over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from playwright.async_api import Error as PlaywrightError

from shoal.fetch.base import Fault, FaultKind, Fetch, Fetcher, Response
from shoal.fetch.browser.chromium import Chromium, Running
from shoal.fetch.browser.dialing import Dialer
from shoal.fetch.browser.rendering import Rendering
from shoal.fetch.browser.way_out import WayOut
from shoal.fetch.exit_config import ExitConfig
from shoal.fetch.faults import one_line
from shoal.fetch.resolver import Lookup
from shoal.model import DIRECT
from shoal.settings import Settings

CLOSE_SECONDS: Final = 5.0


class BrowserFetcher:
    """Fetches pages with a Chromium. Its pages leave through the exits of their leases, and past the guard.

    - `chromium`: the browser
    - `refused`: connections of pages that the guard has refused so far
    - `requests`: requests of pages so far"""

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
        self.refused = self.requests = 0

    async def fetch(self, request: Fetch) -> Response | Fault:
        """Send the request and read the whole answer, within every limit. Follows no redirect."""
        if request.render is None:
            return await self._plain.fetch(request)
        started = self._clock()
        try:
            answer = await self._rendered(request)
        except Exception as error:  # the contract: a fault is a value
            message = one_line(str(error) or type(error).__name__)[:200]
            answer = Fault(kind=FaultKind.LOCAL, message=f"the browser cannot be used: {message}")
        return msgspec.structs.replace(answer, elapsed=self._clock() - started)

    async def close(self) -> None:
        """End the browser, close idle connections."""
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
        async with self.chromium.lend() as running:
            return await self._in_browser(running, request, config)

    async def _in_browser(self, running: Running, request: Fetch, config: ExitConfig | None) -> Response | Fault:
        way_out = WayOut(
            self._dialer,
            config=config,
            most_bytes=self._settings.render_bytes,
            exceeded=lambda reason: rendering.give_up(reason),
        )
        rendering = Rendering(running, request, way_out=way_out, settings=self._settings)
        try:
            proxy = await way_out.open()
            return await self._within_limits(rendering, running, proxy)
        finally:
            self.refused += way_out.refused
            self.requests += rendering.requests
            await self._leave(rendering, running)
            await way_out.close()

    async def _within_limits(self, rendering: Rendering, running: Running, proxy: str) -> Response | Fault:
        render = rendering.render
        seconds = render.seconds or self._settings.render_seconds
        work = asyncio.ensure_future(rendering.run(proxy))
        limit = asyncio.ensure_future(rendering.given_up.wait())
        try:
            await asyncio.wait({work, limit}, timeout=seconds or None, return_when=asyncio.FIRST_COMPLETED)
            if running.has_died:
                # With others in the same browser it is not known whose fault it is: nobody's attempt is used up.
                kind = FaultKind.BROWSER if running.now == 1 else FaultKind.LOCAL
                return Fault(kind=kind, message="the browser died while it rendered the page")
            if (fault := rendering.why()) is not None:
                return fault
            if work.done():
                return work.result()
            return Fault(kind=FaultKind.TIMEOUT_TOTAL, message=f"not rendered within {seconds:g} s (render_seconds)")
        except PlaywrightError as error:
            return Fault(kind=FaultKind.BROWSER, message=one_line(error.message)[:200])
        finally:
            limit.cancel()
            work.cancel()
            await asyncio.gather(work, limit, return_exceptions=True)

    async def _leave(self, rendering: Rendering, running: Running) -> None:
        """Close the page. A browser that does not close it is given no other one."""
        if rendering.context is None or running.has_died:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                with contextlib.suppress(PlaywrightError):
                    await rendering.context.close()
        except TimeoutError:
            self.chromium.retire(running)
