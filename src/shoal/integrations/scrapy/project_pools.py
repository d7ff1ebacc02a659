"""The pools of a Scrapy project: those of SHOAL_PROXIES and shoal.toml that Scrapy can use; which a request gets."""

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
from shoal.integrations.scrapy.stored_requests import UnfitRequest
from shoal.model import DIRECT, Task
from shoal.near_names import did_you_mean
from shoal.settings import CONFIG_FILE, Settings

POOL = "shoal_pool"  # of a request's meta
PROXIED = frozenset({"http", "https"})
LOCAL = frozenset({"data", "file"})  # nothing leaves this machine
_SCRAPYS_OWN = "scrapy.core.downloader.handlers.http"  # the handlers on Twisted, http11 and http2
_HTTP2 = "scrapy.core.downloader.handlers.http2."


class ProjectPools(msgspec.Struct, frozen=True, kw_only=True):
    """What requests may leave through. `default`: the pool of requests that name none, where there is such a one;
    `unusable`: pools that are written somewhere, and why Scrapy cannot use them."""

    specs: dict[str, PoolSpec] = {}
    default: str = ""
    unusable: dict[str, str] = {}

    def of(self, request: Request, *, parent: Task | None, goes_on: bool) -> str:
        """The pool of a request: its own, that of the page which it goes on with, the crawl's, or that of the page it
        was found on. Raises UnfitRequest where there is no such pool, or it could not be used."""
        if not self.specs and POOL not in request.meta and (parent is None or parent.pool == DIRECT):
            return DIRECT
        named = request.meta.get(POOL)
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

    def _check(self, chosen: Any, request: Request) -> None:
        if chosen not in self.specs:
            raise UnfitRequest(f"{request}: {unknown_pool(chosen, self.specs, self.unusable)}")


def pools_of(settings: Settings, project: BaseSettings, *, has_judge: bool) -> ProjectPools:
    """The pools that the settings of a project name. `has_judge`: the middleware is in place that says how exits did.
    Refuses pools that the project asks for and Scrapy cannot use; of a shoal.toml others may be for other spiders."""
    pools = load_pools(Path(CONFIG_FILE), proxies=settings.proxies)
    if not pools and not settings.pool:
        return ProjectPools()
    problems = {name: _problem(spec, project, has_judge=has_judge) for name, spec in pools.items()}
    unusable = {name: problem for name, problem in problems.items() if problem}
    specs = {name: spec for name, spec in pools.items() if name not in unusable}
    given = load_pools(Path(os.devnull), proxies=settings.proxies)
    for name in given.keys() & unusable.keys():
        raise UsageError(f"SHOAL_PROXIES: the pool {name!r} cannot be used with Scrapy: {unusable[name]}")
    if settings.pool and settings.pool not in (DIRECT, *specs):
        raise UsageError(f"SHOAL_POOL: {unknown_pool(settings.pool, specs, unusable)}")
    only = next(iter(given)) if len(given) == 1 else ""
    return ProjectPools(specs=specs, default=settings.pool or only, unusable=unusable)


def unknown_pool(name: Any, specs: Mapping[str, PoolSpec], unusable: Mapping[str, str]) -> str:
    """Why this pool cannot be used, and which ones can."""
    if isinstance(name, str) and name in unusable:
        return f"the pool {name!r} cannot be used with Scrapy: {unusable[name]}"
    known = [DIRECT, *sorted(specs)]
    where = "pools are written in shoal.toml or in the file of SHOAL_PROXIES"
    near = did_you_mean(name, known, otherwise=where) if isinstance(name, str) else where
    return f"there is no pool {name!r}, only {', '.join(known)}; {near}"


def _problem(spec: PoolSpec, project: BaseSettings, *, has_judge: bool) -> str:
    """Why Scrapy cannot use a pool; empty: it can."""
    if not has_judge:
        return 'DOWNLOADER_MIDDLEWARES lacks "shoal.integrations.scrapy.ExitJudge": 585'
    kinds = {config.kind for config in spec.exits}
    if "account" in kinds:
        return "accounts are logged in by spiders of shoal's own"
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
