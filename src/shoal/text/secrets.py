"""Masks secrets: headers, passwords and tokens in URLs, secrets quoted in texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote, quote_plus

SECRET_HEADERS: Final = frozenset(
    {"authorization", "cookie", "proxy-authorization", "x-api-key", "x-auth-token", "x-csrf-token", "x-xsrf-token"}
)
MASK: Final = "***"

_NAMES: Final = "|".join(sorted(SECRET_HEADERS))
# Quotes may be escaped: a dict quoted by an error that another error quotes.
_IN_TEXT: Final = re.compile(
    rf"""(\\{{0,8}}["']?(?:{_NAMES})\\{{0,8}}["']?\s*[:=]\s*)(\\{{0,8}}"[^"]*"?|\\{{0,8}}'[^']*'?|[^\r\n,}}]+)""",
    re.IGNORECASE,
)
_PIECES: Final = re.compile(r"[^\s;=]{8,}")
SHORTEST_SECRET: Final = 3
_USERINFO: Final = re.compile(r"(?<=//)[^/?#\s\"']*@")
_SECRET_OPTION: Final = re.compile(
    r"([?&;][^=&;#]*(?:password|passwd|secret|token|key|credential|signature)[^=&;#]*=)[^&;#]*", re.IGNORECASE
)
_SECRET_PARAMETER: Final = re.compile(
    r"([?&;](?:[^=&;#]*(?:password|passwd|secret|token|signature|credentials?)|(?:[^=&;#]*[_.-])?(?:key|sig|pwd)|apikey)=)"
    r"[^&;#\s\"']*",
    re.IGNORECASE,
)
_BARE_USERINFO: Final = re.compile(r"^(?!mailto:)[^/?#\s@]*:[^/?#\s@]*@")


def has_secrets(headers: Mapping[str, str]) -> bool:
    """Whether any of these headers may only go to its own origin."""
    return any(name.lower() in SECRET_HEADERS for name in headers)


def without_secrets(headers: Mapping[str, str]) -> dict[str, str] | None:
    """The headers that may go to any origin; None when there are none."""
    return {name: value for name, value in headers.items() if name.lower() not in SECRET_HEADERS} or None


def masked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with all values masked: any value may be a secret."""
    return dict.fromkeys(headers, MASK)


def masked_text(text: str) -> str:
    """A text without user names and passwords of URLs and values of secret headers."""
    return _IN_TEXT.sub(rf"\1{MASK}", _BARE_USERINFO.sub("", _USERINFO.sub("", text)))


def secrets_in(headers: Mapping[str, str] | None) -> list[str]:
    """The values of a request's secret headers, and the tokens in them."""
    values = [value for name, value in (headers or {}).items() if name.lower() in SECRET_HEADERS]
    return [*values, *(piece for value in values for piece in _PIECES.findall(value))]


def without(secrets: Iterable[str], text: str) -> str:
    """The text without these secrets, plain, quoted or escaped, and without the secrets that `masked_text` finds."""
    for secret in secrets:
        if len(secret) >= SHORTEST_SECRET:
            for spelled in (secret, repr(secret)[1:-1], quote(secret), quote(secret, safe=""), quote_plus(secret)):
                text = text.replace(spelled, MASK)
    return masked_text(text)


def masked(url: str) -> str:
    """A server's URL without the password in front of its host and without secret options."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    # Up to the last @: an @ after the host may belong to an unescaped password.
    who, at, where = ("", "", rest) if rest.startswith("/") else rest.rpartition("@")
    name, colon, _ = who.partition(":")
    shown = _SECRET_OPTION.sub(r"\1***", where)
    return f"{scheme}{separator}{name}{colon and ':***'}{at}{shown}"


def masked_page_url(url: str) -> str:
    """A page's URL, or a text with URLs, without users, passwords and parameters with secret names."""
    return _SECRET_PARAMETER.sub(rf"\1{MASK}", _USERINFO.sub("", url))


def visible_origin(url: str) -> str:
    """A URL with user and host only: no password, path or query."""
    scheme, separator, rest = masked(url).partition("://")
    return f"{scheme}{separator}{re.split('[/?#]', rest)[0]}"
