"""Requests through gateways: services that fetch a page for us when asked by a URL with the page's URL in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote, urljoin, urlsplit

import msgspec

from shoal.fetch.base import Fault, FaultKind, Response
from shoal.fetch.exit_config import TARGET, ExitConfig, secrets_of
from shoal.fetch.faults import CONNECTING, causes_of, explain
from shoal.fetch.proxies import fault_of
from shoal.secrecy import without_secrets


def gateway_url(config: ExitConfig, url: str) -> str:
    """What to ask the gateway for a page."""
    return config.url.replace(TARGET, quote(url, safe=""))


def gateway_headers(config: ExitConfig, headers: Mapping[str, str] | None) -> dict[str, str] | None:
    """The headers of a request that a gateway may see: secrets are the page's, and none of a third party's business."""
    if not headers:
        return None
    return dict(headers) if config.forwards_secrets else without_secrets(headers)


def gateway_answer(config: ExitConfig, answer: Response | Fault) -> Response | Fault:
    """The page's answer, unless it is the gateway's own."""
    if isinstance(answer, Fault):
        # Its host is what was looked up; the page's name it never told us.
        has_no_route = answer.kind in (FaultKind.DNS, FaultKind.REFUSED_ADDRESS, FaultKind.BAD_URL)
        return fault_of(config, "the gateway's host cannot be found") if has_no_route else answer
    if answer.status in config.error_statuses:
        return fault_of(config, f"the gateway itself answered {answer.status}")
    # Its key would travel into tasks, logs and the archive.
    telling = [
        name for name, value in answer.headers.items() if any(word in unquote(value) for word in secrets_of(config))
    ]
    location = answer.headers.get("location")
    if location and ("location" in telling or _host(location, base=answer.url) == _host(config.url)):
        return fault_of(config, "the gateway redirects to itself")
    headers = {name: value for name, value in answer.headers.items() if name not in telling}
    return msgspec.structs.replace(answer, headers=headers) if telling else answer


def gateway_fault(config: ExitConfig, error: Exception) -> Fault:
    """Whose fault an exception is: what happens before the gateway answers is its own."""
    kind, message = explain(error, secure=config.url.startswith("https:"))
    is_connecting = CONNECTING in causes_of(error) or kind is FaultKind.CONNECT
    is_ours = kind in (FaultKind.LOCAL, FaultKind.BAD_URL)
    return fault_of(config, message) if is_connecting and not is_ours else Fault(kind=kind, message=message)


def _host(url: str, *, base: str = "") -> str | None:
    try:
        return urlsplit(urljoin(base, url)).hostname
    except ValueError:
        return None  # it leads nowhere: for the rules of the crawl to refuse
