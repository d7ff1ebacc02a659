"""The pools of a Scrapy project: from SHOAL_PROXIES and shoal.toml, as far as Scrapy can use them, and the pool of each
request."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from scrapy import Request
from scrapy.settings import BaseSettings
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.python import global_object_name

from shoal.errors import UsageError
from shoal.exits.configuration import PoolSpec, load_pools
from shoal.exits.offered import NO_EXITS, OwnExits
from shoal.exits.pools import pool_of, pool_of_region, tagged_pools
from shoal.model import DIRECT, REGION, Task
from shoal.scrapy.requests import UnfitRequest
from shoal.settings.table import CONFIG_FILE, EXITS_VARIABLE, Settings
from shoal.text.near_names import did_you_mean

POOL, REGION_KEY = "shoal_pool", "shoal_region"  # of a request's meta
PROXIED = frozenset({"http", "https"})
LOCAL = frozenset({"data", "file"})  # nothing leaves this machine
_SCRAPYS_OWN = "scrapy.core.downloader.handlers.http"  # the handlers on Twisted, http11 and http2
_NO_JUDGE = 'DOWNLOADER_MIDDLEWARES lacks "shoal.scrapy.ExitJudge": 585'
_HTTP2 = "scrapy.core.downloader.handlers.http2."


class ProjectPools(msgspec.Struct, frozen=True, kw_only=True):
    """The pools of requests. `default`: for requests that name none; `unusable`: pools that Scrapy cannot use, and why.
    `own`: the exits that this process offers; `tagged`: the pools of each region."""

    specs: dict[str, PoolSpec] = {}
    default: str = ""
    unusable: dict[str, str] = {}
    own: OwnExits = NO_EXITS
    tagged: dict[str, tuple[str, ...]] = {}

    @property
    def has_exits(self) -> bool:
        """Whether requests of this process may be leased with an exit."""
        return bool(self.specs or self.own.specs)

    def of(self, request: Request, *, parent: Task | None, goes_on: bool) -> str:
        """The pool of a request: its own, that of the page it continues, the crawl's, or that of the page it was found
        on. Raises UnfitRequest if there is no such pool, or it cannot be used."""
        names_one = POOL in request.meta or REGION_KEY in request.meta or bool(self.default)
        if not self.specs and not names_one and (parent is None or parent.pool == DIRECT):
            return DIRECT
        named = self._named(request)
        own_proxy = request.meta.get("proxy") if "_scheme_proxy" not in request.meta else None
        if named is None and own_proxy:
            return DIRECT
        before = parent.pool if parent is not None else ""
        chosen = named or (before if goes_on else "") or self.default or before or DIRECT
        if chosen == DIRECT:
            return DIRECT
        scheme = urlparse_cached(request).scheme
        if scheme in LOCAL and named is None:
            return DIRECT
        self._check(chosen, request)
        if own_proxy:
            raise UnfitRequest(f'{request} has both meta["proxy"] and meta["{POOL}"]: leave one of them out')
        if scheme not in PROXIED:
            raise UnfitRequest(
                f"{request}: proxies are used for http and https only, so it cannot leave through the pool {chosen!r};"
                f' meta["{POOL}"] = "{DIRECT}" lets it leave from this machine'
            )
        return chosen

    def _named(self, request: Request) -> Any:
        """The pool that a request names itself, or the pool of its region."""
        named, region = request.meta.get(POOL), request.meta.get(REGION_KEY)
        if region is None:
            return named
        if named is not None:
            raise UnfitRequest(f'{request} has both meta["{POOL}"] and meta["{REGION_KEY}"]: leave one of them out')
        try:
            return pool_of_region(region, self.tagged, what=f'meta["{REGION_KEY}"]')
        except UsageError as error:
            raise UnfitRequest(f"{request}: {error}") from None

    def _check(self, chosen: Any, request: Request) -> None:
        # Tasks of a region are leased to processes that offer it and judge its exits.
        if chosen not in self.specs and not (isinstance(chosen, str) and chosen.startswith(REGION)):
            raise UnfitRequest(f"{request}: {unknown_pool(chosen, self.specs, self.unusable)}")


def pools_of(settings: Settings, project: BaseSettings, *, has_judge: bool, own: OwnExits = NO_EXITS) -> ProjectPools:
    """The pools in a project's settings, with the exits that this process offers. `has_judge`: ExitJudge is installed.
    Refuses pools in the project's settings that Scrapy cannot use; pools in shoal.toml may be for other spiders."""
    pools = load_pools(Path(CONFIG_FILE), proxies=settings.proxies)
    if not pools and not settings.pool and not settings.region and not own.specs:
        return ProjectPools()
    problems = {name: _problem(spec, project, has_judge=has_judge) for name, spec in pools.items()}
    unusable = {name: problem for name, problem in problems.items() if problem}
    specs = {name: spec for name, spec in pools.items() if name not in unusable}
    given = load_pools(Path(os.devnull), proxies=settings.proxies)
    for name in given.keys() & unusable.keys():
        raise UsageError(f"SHOAL_PROXIES: the pool {name!r} cannot be used with Scrapy: {unusable[name]}")
    if settings.pool and settings.pool not in (DIRECT, *specs):
        raise UsageError(f"SHOAL_POOL: {unknown_pool(settings.pool, specs, unusable)}")
    for spec in own.specs:
        if problem := _problem(spec, project, has_judge=has_judge):
            raise UsageError(f"SHOAL_EXITS: [exits.{spec.name}] cannot be used with Scrapy: {problem}")
    tagged = tagged_pools(pool_of(spec, settings=settings) for spec in specs.values())
    if settings.region and settings.pool:
        raise UsageError("SHOAL_POOL and SHOAL_REGION are both set: leave one of them out")
    regional = pool_of_region(settings.region, tagged, what="SHOAL_REGION") if settings.region else ""
    only = next(iter(given)) if len(given) == 1 else ""
    return ProjectPools(
        specs=specs,
        default=settings.pool or regional or only,
        unusable=unusable,
        own=own,
        tagged=tagged,
    )


def exits_file(project: BaseSettings) -> str:
    """The file with the exits of this machine, from a setting or a variable; empty: none."""
    return str(project.get(EXITS_VARIABLE) or os.environ.get(EXITS_VARIABLE, ""))


def unknown_pool(name: Any, specs: Mapping[str, PoolSpec], unusable: Mapping[str, str]) -> str:
    """Why this pool cannot be used, and which can."""
    if isinstance(name, str) and name in unusable:
        return f"the pool {name!r} cannot be used with Scrapy: {unusable[name]}"
    known = [DIRECT, *sorted(specs)]
    where = "pools are written in shoal.toml or in the file of SHOAL_PROXIES"
    near = did_you_mean(name, known, otherwise=where) if isinstance(name, str) else where
    return f"there is no pool {name!r}, only {', '.join(known)}; {near}"


def _problem(spec: PoolSpec, project: BaseSettings, *, has_judge: bool) -> str:
    """Why Scrapy cannot use a pool; empty: it can."""
    if not has_judge:
        return _NO_JUDGE
    kinds = {config.kind for config in spec.exits}
    if "account" in kinds:
        return "accounts are logged in by spiders of shoal's own"
    if "key" in kinds:
        return "headers of accounts are sent by spiders of shoal's own"
    if "address" in kinds:
        return "Scrapy uses a connection again for any request to its host, from whatever address that is to leave"
    if "gateway" in kinds:
        return "it has a gateway, and Scrapy asks the page's own host; many services have a proxy's address as well"
    handlers = project.getwithbase("DOWNLOAD_HANDLERS")
    paths = {_path(handlers.get(scheme)) for scheme in PROXIED}
    if any(path.startswith(_HTTP2) for path in paths):
        return "the HTTP/2 handler in DOWNLOAD_HANDLERS knows no proxies: leave it out"
    schemes = {config.url.partition(":")[0] for config in spec.exits}
    if schemes - {"http"} and any(path.startswith(_SCRAPYS_OWN) for path in paths):
        odd = sorted(schemes - {"http"})[0]
        return f"it has a proxy with {odd}://, and Scrapy's own download handlers know proxies with http:// only"
    return ""


def _path(handler: Any) -> str:
    return handler if isinstance(handler, str) else "" if handler is None else global_object_name(handler)
