"""A Redis URL: what of it people may see, and how to connect to the server or to the sentinels it names."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, unquote, urlencode

import msgspec
from redis.asyncio.connection import AbstractConnection, ConnectionPool

from shoal.errors import UsageError
from shoal.masking import masked

CONNECT_SECONDS = 5.0
SENTINEL_PORT = 26379
EXAMPLE = "redis+sentinel://host1:26379,host2:26379/mymaster/0"

_SECRETS = ("password", "ssl_password", "sentinel_password")
_URL = re.compile(r"(?P<scheme>.*?)://(?P<netloc>[^/?#]*)(?P<path>[^?#]*)\??(?P<query>.*)", re.DOTALL)


class Mask(msgspec.Struct, frozen=True):
    """What nobody may read, as it is and as it stands in a URL."""

    secrets: tuple[str, ...]

    def over(self, text: str) -> str:
        """The text on one line, without the secrets."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return " ".join(text.split())


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """How to connect. With sentinels, `server` lacks its host until they have named the master."""

    shown: str
    mask: Mask
    server: ConnectionPool
    sentinels: tuple[ConnectionPool, ...] = ()
    service: str = ""


class _Parts(msgspec.Struct, frozen=True):
    scheme: str
    user: str
    hosts: str
    path: str
    options: dict[str, str]


def parse_address(url: str) -> Address:
    """The address that a URL stands for. Nothing is connected yet."""
    place, match = shown(url), _URL.fullmatch(url)
    if match is None:
        raise UsageError(f"{place} is not a Redis URL: write redis://host:6379/0 or {EXAMPLE}")
    scheme, netloc, path, query = match.groups()
    if netloc and "@" not in netloc and "@" in path + query:
        raise UsageError(f"{place} is not a Redis URL: write / ? # @ inside a password or a path as %2F %3F %23 %40")
    user, _, hosts = netloc.rpartition("@")
    parts = _Parts(scheme, user, hosts, path, dict(parse_qsl(query)))
    passwords = {unquote(user.partition(":")[2]), *(parts.options.get(name, "") for name in _SECRETS)} - {""}
    written = {form for word in passwords for form in (word, quote(word, safe=""), quote(word))}
    mask = Mask(tuple(sorted(written, key=len, reverse=True)))
    if scheme in ("redis+sentinel", "rediss+sentinel"):
        return _behind_sentinels(parts, place, mask)
    return Address(shown=place, mask=mask, server=_pool(url, place, mask))


def shown(url: str) -> str:
    """The URL as people may see it: the password is masked, options are left out."""
    return re.split("[?#]", masked(url))[0]


def _behind_sentinels(parts: _Parts, place: str, mask: Mask) -> Address:
    service, _, db = parts.path.strip("/").partition("/")
    if not parts.hosts or not service or (db and not db.isdigit()):
        raise UsageError(f"{place} names no sentinel or no master: write {EXAMPLE}")
    scheme, user = parts.scheme.partition("+")[0], f"{parts.user}@" if parts.user else ""
    ours = {name: value for name, value in parts.options.items() if not name.startswith("sentinel_")}
    theirs = {
        name.removeprefix("sentinel_"): value
        for name, value in parts.options.items()
        if name.startswith(("sentinel_", "ssl_"))
    }
    return Address(
        shown=place,
        mask=mask,
        server=_pool(f"{scheme}://{user}master.invalid/{db or 0}?{urlencode(ours)}", place, mask),
        sentinels=tuple(
            _pool(f"{scheme}://{_with_port(host)}?{urlencode(theirs)}", place, mask) for host in parts.hosts.split(",")
        ),
        service=unquote(service),
    )


def _with_port(host: str) -> str:
    return host if ":" in host.rpartition("]")[2] else f"{host}:{SENTINEL_PORT}"


def _pool(url: str, place: str, mask: Mask) -> ConnectionPool:
    try:
        pool = ConnectionPool.from_url(
            url, protocol=2, socket_timeout=None, socket_connect_timeout=CONNECT_SECONDS, driver_info=None
        )
        new_connection(pool)
    except TypeError:
        raise UsageError(f"{place} is not a Redis URL: it has an option that is not known") from None
    except ValueError as error:
        raise UsageError(f"{place} is not a Redis URL: {mask.over(str(error))}") from None
    return pool


def new_connection(pool: ConnectionPool, **place: str | int) -> AbstractConnection:
    """A connection that is not connected yet, to the URL's server or to another place."""
    connection: AbstractConnection = pool.connection_class(**{**pool.connection_kwargs, **place})
    return connection
