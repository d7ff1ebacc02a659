"""A PostgreSQL URL: its form without secrets, the options for shoal, and how to connect."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, unquote, urlencode

import msgspec

from shoal.errors import UsageError
from shoal.text.secrets import masked

EXAMPLE = "postgresql://user:password@host:5432/database"
DEFAULT_SCHEMA = "shoal"
SCHEMES = ("postgresql", "postgres")
CONNECT_SECONDS = 10.0
CACHED_STATEMENTS = 100

_SECRETS = ("password", "sslpassword")
# Options of libpq that asyncpg would pass on as settings, which the server does not know.
_IGNORED = ("channel_binding", "gssencmode", "keepalives", "keepalives_idle", "keepalives_interval",
               "keepalives_count", "tcp_user_timeout", "fallback_application_name", "client_encoding")  # fmt: skip
_URL = re.compile(r"(?P<scheme>.*?)://(?P<netloc>[^/?#]*)(?P<path>[^?#]*)\??(?P<query>.*)", re.DOTALL)


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """How to connect. `dsn` holds the password: only for the driver."""

    shown: str
    dsn: str
    secrets: tuple[str, ...]
    database: str
    schema: str = DEFAULT_SCHEMA
    connect_seconds: float = CONNECT_SECONDS
    cached_statements: int = CACHED_STATEMENTS

    def __repr__(self) -> str:
        return f"Address({self.shown})"

    def without_secrets(self, text: str) -> str:
        """The text on one line, without the secrets."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return " ".join(text.split())

    @property
    def quoted_schema(self) -> str:
        return '"' + self.schema.replace('"', '""') + '"'


def parse_address(url: str) -> Address:
    """The address in a URL. Does not connect."""
    where, match = shown(url), _URL.fullmatch(url)
    if match is None or match["scheme"] not in SCHEMES:
        raise UsageError(f"{where} is not a PostgreSQL URL: write {EXAMPLE}")
    scheme, netloc, path, query = match.groups()
    if netloc and "@" not in netloc and "@" in path + query:
        raise UsageError(f"{where} is not a PostgreSQL URL: write / ? # @ inside a password as %2F %3F %23 %40")
    options = dict(parse_qsl(query, keep_blank_values=True))
    password = unquote(netloc.rpartition("@")[0].partition(":")[2])
    words = {password, *(options.get(name, "") for name in _SECRETS)} - {""}
    written = {form for word in words for form in (word, quote(word, safe=""), quote(word))}
    ours = {name: options.pop(name, "") for name in ("schema", "connect_timeout", "statement_cache_size")}
    rest = {name: value for name, value in options.items() if name not in _IGNORED}
    return Address(
        shown=where,
        dsn=f"{scheme}://{netloc}{path}" + (f"?{urlencode(rest)}" if rest else ""),
        secrets=tuple(sorted(written, key=len, reverse=True)),
        database=unquote(path.strip("/")) or options.get("dbname", ""),
        schema=_checked_schema(ours["schema"] or DEFAULT_SCHEMA, where),
        connect_seconds=float(_number(ours["connect_timeout"], where)) or CONNECT_SECONDS,
        cached_statements=_number(ours["statement_cache_size"] or str(CACHED_STATEMENTS), where),
    )


def shown(url: str) -> str:
    """The URL for people: the password masked, options left out."""
    return re.split("[?#]", masked(url))[0]


def _checked_schema(name: str, where: str) -> str:
    if not name.isprintable() or len(name.encode()) > 63 or name.startswith("pg_"):
        raise UsageError(f"{where}: {name!r} cannot be the name of a schema: write ?schema={DEFAULT_SCHEMA}")
    return name


def _number(text: str, where: str) -> int:
    if text and not (text.isascii() and text.isdigit()):
        raise UsageError(f"{where} is not a PostgreSQL URL: connect_timeout and statement_cache_size are numbers")
    return int(text or 0)
