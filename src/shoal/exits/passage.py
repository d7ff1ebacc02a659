"""How the requests of a lease leave: directly, or through its exit with a report on how the exit did."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from shoal.exits.accounts import Accounts, AccountSession
from shoal.exits.refusals import (
    HELD_AGAINST,
    LOGGED_OUT,
    ExitRefusal,
    Refused,
    ending_of,
    refusal_of,
    unused,
    verdict_on,
)
from shoal.exits.site_cookies import SiteCookies, SiteVisit
from shoal.exits.troubles import KEY_UNSENT, Troubles, trouble_of, trouble_of_family, trouble_of_unsent
from shoal.fetch.base import Fault, FaultKind, Fetch, Fetcher, Response
from shoal.fetch.exits import ExitConfig, Through, headers_for, secrets_of
from shoal.frontier.base import Frontier
from shoal.model import DIRECT, VIA, Lease, Pool, Released, Result, Retry
from shoal.policy.retries import Verdict, judge
from shoal.settings.table import Settings
from shoal.spider.page import TurnedAway
from shoal.spider.session import Session
from shoal.text.errors import reason_of
from shoal.text.secrets import secrets_in
from shoal.urls.canonical import UrlRules

MISSING_SECONDS: Final = 5.0
MAX_FAILED: Final = 4096


class Passage(Protocol):
    """How the requests of one lease leave, and everything that depends on whether they leave through an exit."""

    @property
    def fetcher(self) -> Fetcher:
        """Sends requests this way, without cookies."""

    @property
    def robots_failures(self) -> int:
        """How often the host itself has failed to give this lease its robots.txt."""

    def fetch(self, request: Fetch) -> Awaitable[Response | Fault | Refused]:
        """Send the page's request, with the cookies that are for it. Refused: the account cannot log in."""

    @property
    def last_visit(self) -> SiteVisit | None:
        """The last request that `fetch` sent, as far as cookies go; None where there are no cookies."""

    def cookies_for(self, url: str) -> str:
        """The Cookie header that a request to this URL would have now."""

    def host_latency(self, answer: Response | Fault) -> float:
        """The seconds that the host took to answer; 0 where they say more about the exit."""

    def refused_by_answer(self, answer: Response | Fault, verdict: Verdict) -> Refused | None:
        """How the lease ends if the exit caused this answer; None: the host or the page caused it."""

    def refused_by_handler(self, error: Exception) -> Refused | None:
        """How the lease ends, if the handler raised this because of the exit; None: because of the page."""

    def kept_headers(self, response: Response) -> dict[str, str]:
        """The headers of an answer that may be archived."""

    def secrets(self) -> list[str]:
        """The texts that no reason and no traceback of this lease may show."""

    def reported(self, result: Result) -> Result:
        """The result of a page that was fetched, with the report on the exit."""

    def after_robots(self, result: Released | Retry) -> Released | Retry:
        """The result of asking for robots.txt, with the report on the exit. If the exit got no robots.txt, the next
        exit asks."""


class DirectPassage:
    """Requests without an exit: every failure is caused by the host or the page, and there is nothing to report."""

    __slots__ = ("_cookies", "_lease", "fetcher", "last_visit")

    def __init__(self, lease: Lease, *, fetcher: Fetcher, cookies: SiteCookies | None) -> None:
        self._lease = lease
        self._cookies = cookies
        self.fetcher = fetcher
        self.last_visit: SiteVisit | None = None

    @property
    def robots_failures(self) -> int:
        return self._lease.free_retries

    async def fetch(self, request: Fetch) -> Response | Fault:
        if self._cookies is None:
            return await self.fetcher.fetch(request)
        self.last_visit = await self._cookies.visit(request, fetcher=self.fetcher, lease=self._lease)
        return self.last_visit.answer

    def cookies_for(self, url: str) -> str:
        return self._cookies.header(DIRECT, url) if self._cookies else ""

    def host_latency(self, answer: Response | Fault) -> float:
        return answer.elapsed

    def refused_by_answer(self, answer: Response | Fault, verdict: Verdict) -> None:
        return None

    def refused_by_handler(self, error: Exception) -> None:
        return None

    def kept_headers(self, response: Response) -> dict[str, str]:
        return response.headers if self._cookies is None else without_cookies(response.headers)

    def secrets(self) -> list[str]:
        cookies = self._cookies.secrets(DIRECT, self._lease.task.url) if self._cookies else []
        return secrets_in(self._lease.task.headers) + cookies + _secrets_of(self.last_visit)

    def reported(self, result: Result) -> Result:
        return result

    def after_robots(self, result: Released | Retry) -> Released | Retry:
        return result


class ExitPassage:
    """The way through an exit. An account's requests carry its cookies, after a login if need be."""

    def __init__(
        self,
        lease: Lease,
        *,
        config: ExitConfig,
        fetcher: Fetcher,
        pool: Pool | None,
        accounts: Accounts,
        cookies: SiteCookies | None,
        failures: Failures,
        troubles: Troubles,
        max_tries: int,
    ) -> None:
        self._lease = lease
        self._config = config
        self._through = Through(fetcher, lease)
        self._exits = len(pool.exits) if pool else 1
        self._is_sticky = pool is not None and pool.sticky
        self._accounts = accounts
        self._failures = failures
        self._troubles = troubles
        self._max_tries = max_tries
        self._account: AccountSession | None = None
        self._had_key = False
        self._cookies = cookies
        self.last_visit: SiteVisit | None = None

    @property
    def fetcher(self) -> Fetcher:
        return self._through

    @property
    def robots_failures(self) -> int:
        # The first tries are held against their exits.
        return max(self._lease.free_retries - HELD_AGAINST, 0)

    async def fetch(self, request: Fetch) -> Response | Fault | Refused:
        # Only here: what is asked for beside the page, such as robots.txt or a login, gets none of them.
        headers = headers_for(self._config, request.url, request.headers)
        if headers is not request.headers:
            self._had_key = self._config.kind == "key"
            request = msgspec.structs.replace(request, headers=headers)
        if self._config.kind == "account":
            return await self._as_account(request)
        if self._cookies is None:
            return await self._through.fetch(request)
        self.last_visit = await self._cookies.visit(request, fetcher=self._through, lease=self._lease)
        return self.last_visit.answer

    def cookies_for(self, url: str) -> str:
        if self._account is not None:
            return self._account.cookies_for(url)
        return self._cookies.header(self._lease.exit, url) if self._cookies else ""

    async def _as_account(self, request: Fetch) -> Response | Fault | Refused:
        account = self._account or await self._accounts.session_for(self._lease, self._config, self._through)
        if isinstance(account, ExitRefusal):
            said = self._through.answer
            # A login that could not be sent says nothing about the account.
            is_short = isinstance(said, Fault) and said.kind is FaultKind.SHORTAGE
            return said if said is not None and is_short else self._refused(account)
        self._account = account
        sent = account.cookies_for(request.url)
        answer = await self._through.fetch(account.signed(request))
        self.last_visit = SiteVisit(answer, sent, isinstance(answer, Response) and account.take(answer))
        return answer

    def host_latency(self, answer: Response | Fault) -> float:
        return 0.0

    def refused_by_answer(self, answer: Response | Fault, verdict: Verdict) -> Refused | None:
        if unsent := trouble_of_unsent(self._config, answer):
            self._troubles.begin(f"{KEY_UNSENT}{self._config.name}", unsent)
        refusal = refusal_of(answer, verdict, had_key=self._had_key)
        return None if refusal is None else self._refused(refusal)

    def refused_by_handler(self, error: Exception) -> Refused | None:
        if not isinstance(error, TurnedAway):
            return None
        if error.kind == "logged_out" and self._is_fresh:
            return self._refused(
                ExitRefusal(kind="failed", outcome="login", reason=f"login: {LOGGED_OUT}", is_certain=True)
            )
        reason = reason_of(str(error), secrets=self.secrets())
        return self._refused(ExitRefusal(kind=error.kind, outcome=error.kind, reason=reason))

    def kept_headers(self, response: Response) -> dict[str, str]:
        if self._config.kind != "account" and self._cookies is None:
            return response.headers
        # With an account's cookies anyone is logged in as that account.
        return without_cookies(response.headers)

    def secrets(self) -> list[str]:
        cookies = self._cookies.secrets(self._lease.exit, self._lease.task.url) if self._cookies else []
        return secrets_in(self._lease.task.headers) + secrets_of(self._config) + cookies + _secrets_of(self.last_visit)

    def reported(self, result: Result) -> Result:
        self._troubles.end(self._config.name)
        return msgspec.structs.replace(result, exit=self._through.use(session=self._changed_session(is_over=False)))

    def after_robots(self, result: Released | Retry) -> Released | Retry:
        answer, lease = self._through.answer, self._lease
        refusal = None if answer is None else refusal_of(answer, judge(answer))
        if refusal is None:
            return msgspec.structs.replace(result, exit=self._through.use())
        self._note(refusal)
        # A robots.txt that is forbidden to every exit has a meaning, which is in the result. A host that fails for
        # every exit does not end here, but by the patience of its pages.
        if refusal.kind == "failed" or lease.free_retries < HELD_AGAINST:
            use = self._through.use("failed" if refusal.kind == "failed" else "blocked")
            return Retry(lease=lease, reason=refusal.reason, free=True, exit=use)
        return msgspec.structs.replace(result, exit=self._through.use("used"))

    def _note(self, refusal: ExitRefusal) -> None:
        """Note the trouble with the exit, if the refusal shows one."""
        host = self._lease.task.lane.partition(VIA)[0]
        if trouble := trouble_of(self._config, refusal, host=host):
            self._troubles.begin(self._config.name, trouble)
        if trouble := trouble_of_family(self._config, refusal):
            # Under a name of its own: requests to other hosts, which end what is known of the exit, do not end it.
            self._troubles.begin(f"hosts of {self._config.name}", trouble)

    @property
    def _is_fresh(self) -> bool:
        return self._account is not None and self._account.is_fresh

    def _refused(self, refusal: ExitRefusal) -> Refused:
        """How the lease ends, with the report on its exit."""
        self._note(refusal)
        key = self._lease.task.key
        result = ending_of(
            self._lease, refusal, most_tries=self._max_tries, exits=self._exits, failures=self._failures.of(key)
        )
        if refusal.kind == "failed":
            self._failures.note(key)
        verdict = verdict_on(self._lease, refusal, exits=self._exits, is_sticky=self._is_sticky)
        is_over = refusal.kind == "logged_out" or refusal.outcome == "login"
        if verdict == "used" and self._is_fresh:
            # An account that has just logged in works.
            verdict = "ok"
        use = self._through.use(verdict, session=self._changed_session(is_over=is_over))
        return Refused(msgspec.structs.replace(result, exit=use), refusal.outcome)

    def _changed_session(self, *, is_over: bool) -> bytes | None:
        return None if self._account is None else self._account.changed(is_over=is_over)


def without_cookies(headers: dict[str, str]) -> dict[str, str]:
    """The headers of an answer without the cookies that it sets."""
    if "set-cookie" not in headers:
        return headers
    return {name: text for name, text in headers.items() if name != "set-cookie"}


def _secrets_of(visit: SiteVisit | None) -> list[str]:
    return [] if visit is None else visit.secrets()


class Failures:
    """How often exits have failed a page, as far as this worker knows."""

    def __init__(self) -> None:
        self._seen: OrderedDict[int, int] = OrderedDict()

    def of(self, key: int) -> int:
        """The failures so far of the page with this key."""
        return self._seen.get(key, 0)

    def note(self, key: int) -> None:
        """Count one more failure."""
        self._seen[key] = self.of(key) + 1
        self._seen.move_to_end(key)
        if len(self._seen) > MAX_FAILED:
            self._seen.popitem(last=False)


class Passages:
    """Opens a way to its host for each lease of a worker."""

    def __init__(
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
        troubles: Troubles | None = None,
    ) -> None:
        self._exits = exits
        self._pools = {pool.name: pool for pool in pools}
        self._accounts = Accounts(frontier=frontier, log_in=log_in, rules=rules, settings=settings)
        shared = frontier if settings.cookies == "fleet" else None
        self._cookies = None if settings.cookies == "off" else SiteCookies(frontier=shared)
        self._failures = Failures()
        self.troubles = troubles or Troubles(say)
        self._fetcher = fetcher
        self._max_tries = settings.max_exit_tries
        self._say = say
        self._has_said_missing = False

    def open(self, lease: Lease) -> Passage | None:
        """How a lease's requests leave; None: this worker does not have the exit that the lease names."""
        if lease.exit == DIRECT:
            return DirectPassage(lease, fetcher=self._fetcher, cookies=self._cookies)
        config = self._exits.get(lease.exit)
        if config is None:
            return None
        return ExitPassage(
            lease,
            config=config,
            fetcher=self._fetcher,
            pool=self._pools.get(lease.task.pool),
            accounts=self._accounts,
            cookies=self._cookies,
            failures=self._failures,
            troubles=self.troubles,
            max_tries=self._max_tries,
        )

    async def hand_back(self, lease: Lease) -> Released:
        """Give back a lease whose exit is not known here. Not at once: it would be lent to us again."""
        if not self._has_said_missing:
            self._has_said_missing = True
            self._say(f"there is no exit {lease.exit} here: give this machine the same shoal.toml and proxies file")
        await asyncio.sleep(MISSING_SECONDS)
        return Released(lease=lease, exit=unused(lease))
