"""Exits as people write them: proxies, gateways, addresses of this machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

from shoal.exits.pool_tables import Source, Table
from shoal.fetch.addresses import BIND, parse_address
from shoal.fetch.exits import TARGET, ExitConfig

PROXY_SCHEMES: Final = ("http", "https", "socks5", "socks5h")

_PROVIDER_FORM: Final = re.compile(r"([^\s:/@]+):(\d+)(?::([^\s:]+):(\S+))?")
_HOST: Final = re.compile(r"[\w.-]+|[0-9a-f:.]+")
_EXAMPLE: Final = "http://user:password@host:3128, socks5://host:1080, or a URL with {url} in it"

_BIND_EXAMPLE: Final = f"{BIND}192.0.2.7, with an address of this machine"


def exits_in(pool: str, given: Table, source: Source) -> tuple[ExitConfig, ...]:
    """The proxies and gateways of a pool, each once, in the order they were written."""
    written = {f"entry {number} of urls": url.strip() for number, url in enumerate(given.urls, 1)}
    written |= {"url": given.url.strip()} if given.url else {}
    written |= source.urls(given.file) if given.file else {}
    words = re.split(r"[\s,]+", source.variable(given.env).strip(", ")) if given.env else []
    written |= {f"word {number} of {given.env}": word for number, word in enumerate(words, 1)}
    urls: dict[str, str] = {}
    for where, entry in written.items():
        url, host = _written(entry)
        if not url:
            example = _BIND_EXAMPLE if entry.startswith(BIND) else _EXAMPLE
            source.fail(f"{where} is not an exit ({host}): write {example}")
        urls.setdefault(url, host)
    exits = zip(_distinct(f"{pool}/{host}" for host in urls.values()), urls, strict=True)
    return tuple(
        ExitConfig(name=name, kind="address", address=url.removeprefix(BIND))
        if url.startswith(BIND)
        else ExitConfig(
            name=name,
            kind="gateway",
            url=url,
            error_statuses=given.error_statuses,
            forwards_secrets=given.forward_secrets,
        )
        if TARGET in url
        else ExitConfig(name=name, kind="proxy", url=url)
        for name, url in exits
    )


def _written(entry: str) -> tuple[str, str]:
    """An exit as it is kept, and its name; or nothing, and what is wrong with the entry."""
    if entry.startswith(BIND):
        try:
            address = parse_address(entry.removeprefix(BIND))
        except ValueError as error:
            return "", str(error)
        return f"{BIND}{address}", address
    return _gateway(entry) if TARGET in entry else parse_proxy(entry)


def parse_proxy(entry: str) -> tuple[str, str]:
    """The proxy's URL and its host:port; or no URL, and what is wrong with the entry."""
    if plain := _PROVIDER_FORM.fullmatch(entry):
        host, port, user, password = plain.groups()
        who = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user else ""
        entry = f"http://{who}{host}:{port}"
    try:
        parts = urlsplit(entry)
        port_number = parts.port
    except ValueError:
        return "", "its port is no number up to 65535; write / ? # @ in a password as %2F %3F %23 %40"
    if parts.scheme not in PROXY_SCHEMES:
        return "", f"its scheme is none of {', '.join(PROXY_SCHEMES)}"
    name = _host_of(parts)
    if not name or not port_number or parts.path not in ("", "/") or parts.query or parts.fragment:
        return "", "it wants a host and a port, and nothing behind them"
    address = f"{f'[{name}]' if ':' in name else name}:{port_number}"
    user, password = (quote(unquote(part or ""), safe="") for part in (parts.username, parts.password))
    who = f"{user}:{password}@" if user or password else ""
    return f"{parts.scheme}://{who}{address}", address


def _gateway(entry: str) -> tuple[str, str]:
    """The gateway's template and its host; or no template, and what is wrong with the entry."""
    problem = "", "a gateway is a http or https URL with {url} behind its host"
    try:
        parts = urlsplit(entry.partition(TARGET)[0])
        name = _host_of(parts) if parts.port != 0 else ""  # an invalid port raises
    except ValueError:
        return problem
    if parts.scheme not in ("http", "https") or not name or not (parts.path or parts.query):
        return problem
    if not parts.path:
        entry = entry.replace("?", "/?", 1)
    return entry, parts.netloc.rpartition("@")[2]


def _host_of(parts: SplitResult) -> str:
    """The host; empty if it is not a valid one."""
    return parts.hostname if parts.hostname and _HOST.fullmatch(parts.hostname) else ""


def _distinct(names: Iterable[str]) -> Iterator[str]:
    """The names, each of them once: the second a becomes a-2."""
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name}-{seen[name]}"
