"""The exits of a process's leases: how Scrapy's requests leave through them, and the reports on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
from scrapy import Request
from w3lib.http import basic_auth_header

from shoal.exits.passage import MISSING_SECONDS, Failures
from shoal.exits.refusals import ExitRefusal, Refused, ending_of, unused, verdict_on
from shoal.exits.troubles import Troubles, trouble_of
from shoal.fetch.base import Fault, Response
from shoal.fetch.exits import ExitConfig
from shoal.model import DIRECT, ExitUse, Lease, Pool, Released, Result

PROXY, AUTHORIZATION = "proxy", "Proxy-Authorization"


class _Proxy(NamedTuple):
    """A proxy as Scrapy's handlers want it: its URL, and its credentials beside it."""

    url: str
    credentials: bytes | None


@dataclass(eq=False, kw_only=True)
class LeasedExit:
    """The exit of one lease. `refused`: how the lease ends, where the exit could not fetch the page, with what was
    answered in its place."""

    lease: Lease
    config: ExitConfig
    proxy: _Proxy
    pool: Pool | None
    was_used: bool = False
    size: int = 0
    elapsed: float = 0.0
    refused: Refused | None = None
    refusal: ExitRefusal | None = None
    answer: Response | Fault | None = None

    @contextmanager
    def carries(self, request: Request) -> Iterator[None]:
        """Let the request leave through the exit, whatever other parts have set. What it says of the proxy is taken
        away again at once: copies of a request go into the frontier, and the proxy's password must not."""
        before = {PROXY: request.meta[PROXY]} if PROXY in request.meta else {}
        credentials = request.headers.getlist(AUTHORIZATION)
        request.meta[PROXY] = self.proxy.url
        request.headers.pop(AUTHORIZATION, None)
        if self.proxy.credentials is not None:
            request.headers[AUTHORIZATION] = self.proxy.credentials
        try:
            yield
        finally:
            request.meta.pop(PROXY, None)
            request.meta.update(before)
            request.headers.pop(AUTHORIZATION, None)
            if credentials:
                request.headers.setlist(AUTHORIZATION, credentials)

    def refuse(
        self, refusal: ExitRefusal, answer: Response | Fault | None, *, max_tries: int, failures: Failures
    ) -> Refused:
        """Note that the page could not be fetched through this exit; gives how its lease ends."""
        lease, key = self.lease, self.lease.task.key
        exits, is_sticky = (len(self.pool.exits), self.pool.sticky) if self.pool is not None else (1, False)
        result = ending_of(lease, refusal, most_tries=max_tries, exits=exits, failures=failures.of(key))
        if refusal.kind == "failed":
            failures.note(key)
        use = self.report(verdict_on(lease, refusal, exits=exits, is_sticky=is_sticky))
        self.refusal, self.answer = refusal, answer
        self.refused = Refused(msgspec.structs.replace(result, exit=use), refusal.outcome)
        return self.refused

    def report(self, verdict: Literal["ok", "blocked", "failed", "used"] = "ok") -> ExitUse:
        """The report on the exit."""
        return ExitUse(verdict=verdict if self.was_used else "unused", size=self.size, elapsed=self.elapsed)


class LeasedExits:
    """Finds the exits of leases, and keeps the troubles with them. `encoding` is that of user names and passwords."""

    def __init__(
        self,
        exits: Mapping[str, ExitConfig],
        *,
        pools: Sequence[Pool],
        troubles: Troubles,
        say: Callable[[str], None],
        encoding: str,
    ) -> None:
        self._exits = exits
        self._pools = {pool.name: pool for pool in pools}
        self._encoding = encoding
        self._say = say
        self._has_said_missing = False
        self.troubles = troubles

    def has(self, lease: Lease) -> bool:
        """Whether this process knows the exit of a lease."""
        return lease.exit == DIRECT or lease.exit in self._exits

    def of(self, lease: Lease) -> LeasedExit | None:
        """The exit of a lease that `has` one; None: its requests leave directly."""
        if lease.exit == DIRECT:
            return None
        config = self._exits[lease.exit]
        proxy = _proxy_of(config, self._encoding)
        return LeasedExit(lease=lease, config=config, proxy=proxy, pool=self._pools.get(lease.task.pool))

    async def hand_back(self, lease: Lease) -> Released:
        """Give back a lease whose exit is not known here. Not at once: it would be lent to us again."""
        if not self._has_said_missing:
            self._has_said_missing = True
            self._say(
                f"there is no exit {lease.exit} here: give this process the same shoal.toml and SHOAL_PROXIES as the"
                " others"
            )
        await asyncio.sleep(MISSING_SECONDS)
        return Released(lease=lease, exit=unused(lease))

    def refused(self, leased: LeasedExit) -> None:
        """Note the trouble with an exit, if the refusal shows one."""
        if leased.refusal is not None and (trouble := trouble_of(leased.config, leased.refusal)):
            self.troubles.begin(leased.config.name, trouble)

    def reported(self, result: Result, leased: LeasedExit) -> Result:
        """The result of a page that was fetched, with the report on its exit."""
        if leased.was_used:
            self.troubles.end(leased.config.name)
        return msgspec.structs.replace(result, exit=leased.report())


def _proxy_of(config: ExitConfig, encoding: str) -> _Proxy:
    parts = urlsplit(config.url)
    bare = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    if parts.username is None:
        return _Proxy(bare, None)
    return _Proxy(bare, basic_auth_header(unquote(parts.username), unquote(parts.password or ""), encoding))
