"""The way out of a lease that goes through an exit: the account's session, and the report of how the exit did."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from shoal.error_text import line_of, reason_of
from shoal.exits.refusals import ExitRefusal, ending_of, unused, verdict_on
from shoal.fetch.base import Fault, Fetch, Fetcher, Response
from shoal.fetch.exit_config import ExitConfig, secrets_of
from shoal.fetch.through import Through
from shoal.frontier.base import Frontier
from shoal.model import VIA, Dead, Lease, Pool, Released, Result, Retry
from shoal.page import TurnedAway
from shoal.secrecy import secrets_in
from shoal.session import Session
from shoal.settings import Settings
from shoal.urls import UrlRules, lane_of

MISSING_SECONDS: Final = 5.0
MAX_SESSIONS: Final = 1024
MAX_FAILED: Final = 4096


class Failures:
    """How often exits have failed a page, as far as this worker knows."""

    def __init__(self) -> None:
        self._seen: OrderedDict[int, int] = OrderedDict()

    def of(self, key: int) -> int:
        return self._seen.get(key, 0)

    def note(self, key: int) -> None:
        """One more."""
        self._seen[key] = self.of(key) + 1
        self._seen.move_to_end(key)
        if len(self._seen) > MAX_FAILED:
            self._seen.popitem(last=False)


class Passage:
    """One lease's way out. For an account: with its session, logged in if need be."""

    def __init__(
        self, lease: Lease, *, fetcher: Fetcher, pool: Pool | None, settings: Settings, failures: Failures
    ) -> None:
        self._lease = lease
        self._failures = failures
        self._exits = len(pool.exits) if pool else 1
        self._is_sticky = pool is not None and pool.sticky
        self._settings = settings
        self._through = Through(fetcher, lease)
        self._kept = b""
        self._session: Session | None = None
        self._is_fresh = False

    @property
    def fetcher(self) -> Through:
        return self._through

    def use_session(self, session: Session, *, kept: bytes, is_fresh: bool) -> None:
        """From here on requests are the account's. `kept` is what the frontier has of it."""
        self._session, self._kept, self._is_fresh = session, kept, is_fresh

    async def fetch(self, request: Fetch) -> Response | Fault:
        """Send the page's request, with the account's cookies; what it sets is kept."""
        if self._session is None:
            return await self._through.fetch(request)
        own = request.headers or {}
        names = {name.lower() for name in own}
        given = {
            name: text for name, text in self._session.headers_for(request.url).items() if name.lower() not in names
        }
        answer = await self._through.fetch(msgspec.structs.replace(request, headers={**given, **own}))
        if isinstance(answer, Response):
            self._session.take(answer)
        return answer

    def refusal_of(self, error: TurnedAway) -> ExitRefusal:
        """What a handler said of its page."""
        if error.kind == "logged_out" and self._is_fresh:
            return ExitRefusal(kind="failed", outcome="login", reason="login: logged out at once", is_certain=True)
        reason = reason_of(str(error), secrets=secrets_in(self._lease.task.headers))
        return ExitRefusal(kind=error.kind, outcome=error.kind, reason=reason)

    def turned_away(self, refusal: ExitRefusal) -> Retry | Dead:
        """How the lease ends that was turned away, with the report on its exit."""
        key, most = self._lease.task.key, self._settings.max_exit_tries
        result = ending_of(self._lease, refusal, most_tries=most, exits=self._exits, failures=self._failures.of(key))
        if refusal.kind == "failed":
            self._failures.note(key)
        verdict = verdict_on(self._lease, refusal, exits=self._exits, is_sticky=self._is_sticky)
        is_over = refusal.kind == "logged_out" or refusal.outcome == "login"
        if verdict == "used" and self._is_fresh:
            # An account that has just logged in works.
            verdict = "ok"
        return msgspec.structs.replace(result, exit=self._through.use(verdict, session=self._changed(is_over=is_over)))

    def reported(self, result: Result) -> Result:
        """The result with the report on an exit that did its work."""
        return msgspec.structs.replace(result, exit=self._through.use(session=self._changed(is_over=False)))

    def _changed(self, *, is_over: bool) -> bytes | None:
        """What the frontier is to keep from now on; None: what it has."""
        if self._session is None:
            return None
        kept = b"" if is_over else self._session.dump()
        return kept if kept != self._kept else None


class Passages:
    """Opens the ways out of a worker's leases. Remembers what the frontier keeps for accounts, by its version."""

    def __init__(  # noqa: PLR0913 -- the parts of a worker, put together in one place
        self,
        *,
        exits: Mapping[str, ExitConfig],
        pools: Sequence[Pool],
        frontier: Frontier,
        fetcher: Fetcher,
        log_in: Callable[[Session], Awaitable[None]],
        rules: UrlRules,
        settings: Settings,
        say: Callable[[str], None],
    ) -> None:
        self._exits = exits
        self._pools = {pool.name: pool for pool in pools}
        self._failures = Failures()
        self._frontier = frontier
        self._fetcher = fetcher
        self._spider_login = log_in
        self._rules = rules
        self._settings = settings
        self._say = say
        self._has_said_missing = False
        self._sessions: OrderedDict[tuple[str, int], bytes] = OrderedDict()

    def knows(self, lease: Lease) -> bool:
        """Whether this worker has the exit that it was lent."""
        return lease.exit in self._exits

    def is_account(self, lease: Lease) -> bool:
        """Whether the lease's requests are those of somebody who is logged in."""
        config = self._exits.get(lease.exit)
        return config is not None and config.kind == "account"

    def secrets(self, lease: Lease) -> list[str]:
        """What nobody may read of a lease, whatever a spider's own error quotes."""
        config = self._exits.get(lease.exit)
        return secrets_in(lease.task.headers) + ([] if config is None else secrets_of(config))

    async def hand_back(self, lease: Lease) -> Released:
        """Give back a lease whose exit is not known here. Not at once: it would be lent to us again."""
        if not self._has_said_missing:
            self._has_said_missing = True
            self._say(f"there is no exit {lease.exit} here: give this machine the same shoal.toml and proxies file")
        await asyncio.sleep(MISSING_SECONDS)
        return Released(lease=lease, exit=unused(lease))

    async def open(self, lease: Lease) -> tuple[Passage, ExitRefusal | None]:
        """The way out, and why it cannot be taken if the account's login failed."""
        config = self._exits[lease.exit]
        pool = self._pools.get(lease.task.pool)
        passage = Passage(lease, fetcher=self._fetcher, pool=pool, settings=self._settings, failures=self._failures)
        if config.kind != "account":
            return passage, None
        slots = _Slots(self._frontier, lease)
        session = Session(
            config, fetcher=passage.fetcher, settings=self._settings, rules=self._rules, before=slots.wait
        )
        kept = await self._kept(lease)
        if kept:
            session.load(kept)
            passage.use_session(session, kept=kept, is_fresh=False)
            return passage, None
        refusal = await self._log_in(session, config)
        if refusal is None:
            passage.use_session(session, kept=b"", is_fresh=True)
            await slots.wait(lease.task.url)
        return passage, refusal

    async def _log_in(self, session: Session, config: ExitConfig) -> ExitRefusal | None:
        try:
            await self._spider_login(session)
        except Exception as error:
            reason = f"login: {config.name}: {line_of(error, secrets=secrets_of(config))}"
            return ExitRefusal(kind="failed", outcome="login", reason=reason, is_certain=True)
        return None

    async def _kept(self, lease: Lease) -> bytes:
        """What the frontier keeps for the lease's account; nothing: it must log in."""
        if not lease.session_version:
            return b""
        place = (lease.exit, lease.session_version)
        known = self._sessions.get(place)
        if known is None:
            version, known = await self._frontier.session(lease.crawl, lease.exit)
            self._sessions[lease.exit, version] = known
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return known


class _Slots:
    """The start slots of a lease's requests: the first has the lease's own, each later one takes another."""

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
        await asyncio.sleep(await self._frontier.reserve(self._lease.crawl, lane, exit=self._lease.exit))
