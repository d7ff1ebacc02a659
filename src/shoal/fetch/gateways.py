"""Requests through gateways: services that fetch the page whose URL is part of the URL they are asked for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote, urljoin, urlsplit

import msgspec

from shoal.fetch.base import Fault, FaultKind, Response, location_of
from shoal.fetch.exit_config import TARGET, ExitConfig, secrets_of
from shoal.fetch.faults import CONNECTING, causes_of, explain
from shoal.fetch.proxies import fault_of
from shoal.text.secrets import without_secrets


def gateway_url(config: ExitConfig, url: str) -> str:
    """The URL to ask the gateway for a page."""
    return config.url.replace(TARGET, quote(url, safe=""))


def gateway_headers(config: ExitConfig, headers: Mapping[str, str] | None) -> dict[str, str] | None:
    """The headers of a request that a gateway may see: secrets are for the page's host, not for a third party."""
    if not headers:
        return None
    return dict(headers) if config.forwards_secrets else without_secrets(headers)


def gateway_answer(config: ExitConfig, answer: Response | Fault) -> Response | Fault:
    """The page's answer; a fault if it is the gateway's own."""
    if isinstance(answer, Fault):
        # The gateway's host was looked up, not the page's.
        has_no_route = answer.kind in (FaultKind.DNS, FaultKind.REFUSED_ADDRESS, FaultKind.BAD_URL)
        return fault_of(config, "the gateway's host cannot be found") if has_no_route else answer
    if answer.status in config.error_statuses:
        return fault_of(config, f"the gateway itself answered {answer.status}")
    # Headers that quote the gateway's key: it would get into tasks, logs and the archive.
    telling = [
        name for name, value in answer.headers.items() if any(word in unquote(value) for word in secrets_of(config))
    ]
    location = location_of(answer.headers)
    if location and ("location" in telling or _host(location, base=answer.url) == _host(config.url)):
        return fault_of(config, "the gateway redirects to itself")
    headers = {name: value for name, value in answer.headers.items() if name not in telling}
    return msgspec.structs.replace(answer, headers=headers) if telling else answer


def gateway_fault(config: ExitConfig, error: Exception) -> Fault:
    """The fault that an exception stands for: the gateway's own, if it could not be connected to."""
    kind, message = explain(error, secure=config.url.startswith("https:"))
    is_connecting = CONNECTING in causes_of(error) or kind is FaultKind.CONNECT
    is_ours = kind in (FaultKind.LOCAL, FaultKind.SHORTAGE, FaultKind.BAD_URL)
    return fault_of(config, message) if is_connecting and not is_ours else Fault(kind=kind, message=message)


def _host(url: str, *, base: str = "") -> str | None:
    try:
        return urlsplit(urljoin(base, url)).hostname
    except ValueError:
        return None  # not a URL: the rules of the crawl will refuse it
