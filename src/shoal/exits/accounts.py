"""The login sessions of accounts: a lease through an account gets its session, after a login if there is none."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec

from shoal.exits.refusals import ExitRefusal
from shoal.fetch.base import Fetch, Fetcher, Response
from shoal.fetch.exits import ExitConfig, secrets_of
from shoal.frontier.base import Frontier
from shoal.frontier.clock import wait_for_slot
from shoal.model import VIA, Lease
from shoal.settings.table import Settings
from shoal.spider.session import Session
from shoal.text.errors import line_of
from shoal.urls.canonical import UrlRules, lane_of

MAX_SESSIONS: Final = 1024


class LoginRefused(Exception):  # noqa: N818 -- its name is part of the message
    """A spider's login returned False: the account could not be logged in."""


class AccountSession:
    """The session of a lease's account. `is_fresh`: it logged in for this lease."""

    def __init__(self, session: Session, *, kept: bytes, is_fresh: bool) -> None:
        self.is_fresh = is_fresh
        self._session = session
        self._kept = kept

    def signed(self, request: Fetch) -> Fetch:
        """The request with the account's cookies and User-Agent; headers of the request itself win."""
        own = request.headers or {}
        names = {name.lower() for name in own}
        given = {
            name: text for name, text in self._session.headers_for(request.url).items() if name.lower() not in names
        }
        return msgspec.structs.replace(request, headers={**given, **own})

    def cookies_for(self, url: str) -> str:
        """The account's Cookie header for a request to this URL."""
        return self._session.cookies.header(url)

    def take(self, response: Response) -> bool:
        """Keep the cookies of an answer. Returns whether there are new ones."""
        return self._session.take(response)

    def changed(self, *, is_over: bool) -> bytes | None:
        """The session as bytes for the frontier; None: unchanged. `is_over`: empty bytes, so that it logs in again."""
        kept = b"" if is_over else self._session.dump()
        return kept if kept != self._kept else None


class Accounts:
    """The sessions of a worker's leases; caches the frontier's sessions by account and version."""

    def __init__(
        self,
        *,
        frontier: Frontier,
        log_in: Callable[[Session], Awaitable[None]],
        rules: UrlRules,
        settings: Settings,
    ) -> None:
        self._frontier = frontier
        self._spider_login = log_in
        self._rules = rules
        self._settings = settings
        self._sessions: OrderedDict[tuple[str, int], bytes] = OrderedDict()

    async def session_for(self, lease: Lease, config: ExitConfig, fetcher: Fetcher) -> AccountSession | ExitRefusal:
        """The session of the lease's account, or why the login failed."""
        slots = _Slots(self._frontier, lease)
        session = Session(config, fetcher=fetcher, settings=self._settings, rules=self._rules, before=slots.wait)
        kept = await self._kept(lease)
        if kept:
            session.load(kept)
            return AccountSession(session, kept=kept, is_fresh=False)
        try:
            await self._spider_login(session)
        except Exception as error:
            reason = f"login: {config.name}: {line_of(error, secrets=secrets_of(config))}"
            return ExitRefusal(kind="failed", outcome="login", reason=reason, is_certain=True)
        await slots.wait(lease.task.url)
        return AccountSession(session, kept=b"", is_fresh=True)

    async def _kept(self, lease: Lease) -> bytes:
        """The frontier's session of the lease's account; empty: the account must log in."""
        if not lease.session_version:
            return b""
        known = self._sessions.get((lease.exit, lease.session_version))
        if known is None:
            version, known = await self._frontier.session(lease.crawl, lease.exit)
            self._sessions[lease.exit, version] = known
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return known


class _Slots:
    """The start slots of a lease's requests: the first uses the lease's own slot, each later one reserves another."""

    def __init__(self, frontier: Frontier, lease: Lease) -> None:
        self._frontier = frontier
        self._lease = lease
        self._has_begun = False

    async def wait(self, url: str) -> None:
        """Wait for the slot of the next request."""
        if not self._has_begun:
            self._has_begun = True
            return
        lane = f"{lane_of(url)}{VIA}{self._lease.task.pool}"
        reserve = partial(self._frontier.reserve, self._lease.crawl, lane, exit=self._lease.exit)
        interval = max(self._lease.interval, self._lease.exit_interval)
        await wait_for_slot(time.monotonic() + await reserve(), interval=interval, reserve=reserve)
