"""A Redis URL: its form without secrets, and how to connect to the server, sentinels or cluster nodes that it names."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, unquote, urlencode

import msgspec
from redis.asyncio.connection import AbstractConnection, ConnectionPool

from shoal.errors import UsageError
from shoal.text.secrets import masked

CONNECT_SECONDS = 5.0
SENTINEL_PORT = 26379
CLUSTER_PORT = 6379
MAX_SHARDS = 1024
EXAMPLE = "redis+sentinel://host1:26379,host2:26379/mymaster/0"
CLUSTER_EXAMPLE = "redis+cluster://host1:6379,host2:6379/?shards=16"

_SECRETS = ("password", "ssl_password", "sentinel_password")
_URL = re.compile(r"(?P<scheme>.*?)://(?P<netloc>[^/?#]*)(?P<path>[^?#]*)\??(?P<query>.*)", re.DOTALL)


class Mask(msgspec.Struct, frozen=True):
    """Secrets that must not be shown, plain and as quoted in a URL."""

    secrets: tuple[str, ...]

    def over(self, text: str) -> str:
        """The text on one line, without the secrets."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return " ".join(text.split())


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """How to connect. `server` has no host yet when there are `sentinels` (they name the master) or `nodes` of a
    cluster (one of them has the key). `shards`: for new crawls; 0: not in the URL."""

    shown: str
    mask: Mask
    server: ConnectionPool
    sentinels: tuple[ConnectionPool, ...] = ()
    service: str = ""
    nodes: tuple[tuple[str, int], ...] = ()
    shards: int = 0


class _UrlParts(msgspec.Struct, frozen=True):
    scheme: str
    user: str
    hosts: str
    path: str
    options: dict[str, str]


def parse_address(url: str) -> Address:
    """Parse a URL. Connects to nothing."""
    shown_url, match = shown(url), _URL.fullmatch(url)
    if match is None:
        raise UsageError(f"{shown_url} is not a Redis URL: write redis://host:6379/0 or {EXAMPLE}")
    scheme, netloc, path, query = match.groups()
    if netloc and "@" not in netloc and "@" in path + query:
        raise UsageError(
            f"{shown_url} is not a Redis URL: write / ? # @ inside a password or a path as %2F %3F %23 %40"
        )
    user, _, hosts = netloc.rpartition("@")
    parts = _UrlParts(scheme, user, hosts, path, dict(parse_qsl(query)))
    passwords = {unquote(user.partition(":")[2]), *(parts.options.get(name, "") for name in _SECRETS)} - {""}
    written = {form for word in passwords for form in (word, quote(word, safe=""), quote(word))}
    mask = Mask(tuple(sorted(written, key=len, reverse=True)))
    shards = _shards(parts.options.pop("shards", None), shown_url)
    if scheme in ("redis+sentinel", "rediss+sentinel"):
        address = _behind_sentinels(parts, shown_url, mask)
    elif scheme in ("redis+cluster", "rediss+cluster"):
        address = _cluster(parts, shown_url, mask)
    else:
        plain = f"{url.partition('?')[0]}?{urlencode(parts.options)}" if shards else url
        address = Address(shown=shown_url, mask=mask, server=_pool(plain, shown_url, mask))
    return msgspec.structs.replace(address, shards=shards)


def shown(url: str) -> str:
    """The URL for people: with masked password and without options."""
    return re.split("[?#]", masked(url))[0]


def _behind_sentinels(parts: _UrlParts, shown_url: str, mask: Mask) -> Address:
    service, _, db = parts.path.strip("/").partition("/")
    if not parts.hosts or not service or (db and not db.isdigit()):
        raise UsageError(f"{shown_url} names no sentinel or no master: write {EXAMPLE}")
    scheme, user = parts.scheme.partition("+")[0], f"{parts.user}@" if parts.user else ""
    ours = {name: value for name, value in parts.options.items() if not name.startswith("sentinel_")}
    theirs = {
        name.removeprefix("sentinel_"): value
        for name, value in parts.options.items()
        if name.startswith(("sentinel_", "ssl_"))
    }
    return Address(
        shown=shown_url,
        mask=mask,
        server=_pool(f"{scheme}://{user}master.invalid/{db or 0}?{urlencode(ours)}", shown_url, mask),
        sentinels=tuple(
            _pool(f"{scheme}://{_with_port(host)}?{urlencode(theirs)}", shown_url, mask)
            for host in parts.hosts.split(",")
        ),
        service=unquote(service),
    )


def _cluster(parts: _UrlParts, shown_url: str, mask: Mask) -> Address:
    hosts = [_with_port(host, CLUSTER_PORT).rpartition(":") for host in parts.hosts.split(",")]
    if not all(host and port.isdigit() for host, _, port in hosts):
        raise UsageError(f"{shown_url} names no node of a cluster: write {CLUSTER_EXAMPLE}")
    if parts.path.strip("/") not in ("", "0"):
        raise UsageError(f"{shown_url} names a database: a Redis Cluster has number 0 alone, write {CLUSTER_EXAMPLE}")
    scheme, user = parts.scheme.partition("+")[0], f"{parts.user}@" if parts.user else ""
    return Address(
        shown=shown_url,
        mask=mask,
        server=_pool(f"{scheme}://{user}node.invalid/0?{urlencode(parts.options)}", shown_url, mask),
        nodes=tuple((host.strip("[]"), int(port)) for host, _, port in hosts),
    )


def _shards(given: str | None, shown_url: str) -> int:
    if given is None:
        return 0
    if not given.isdigit() or not 1 <= int(given) <= MAX_SHARDS:
        raise UsageError(f"{shown_url} is not a Redis URL: shards is a number from 1 to {MAX_SHARDS}")
    return int(given)


def _with_port(host: str, port: int = SENTINEL_PORT) -> str:
    return host if ":" in host.rpartition("]")[2] else f"{host}:{port}"


def _pool(url: str, shown_url: str, mask: Mask) -> ConnectionPool:
    try:
        pool = ConnectionPool.from_url(
            url, protocol=2, socket_timeout=None, socket_connect_timeout=CONNECT_SECONDS, driver_info=None
        )
        new_connection(pool)
    except TypeError:
        raise UsageError(f"{shown_url} is not a Redis URL: it has an option that is not known") from None
    except ValueError as error:
        raise UsageError(f"{shown_url} is not a Redis URL: {mask.over(str(error))}") from None
    return pool


def new_connection(pool: ConnectionPool, **host_and_port: str | int) -> AbstractConnection:
    """A connection, not yet connected, to the URL's server or to another host and port."""
    connection: AbstractConnection = pool.connection_class(**{**pool.connection_kwargs, **host_and_port})
    return connection
