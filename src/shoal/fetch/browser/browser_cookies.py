"""The cookies of a rendered page: from our jar into the browser's, and what came of them back into ours."""

from __future__ import annotations

from collections.abc import Sequence
from email.utils import formatdate
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Cookie

from shoal.fetch.base import Fetch


def given_cookies(request: Fetch) -> list[Any]:
    """The cookies of a request as the browser's jar takes them: for the page's host, and no other."""
    parts = urlsplit(request.url)
    origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/"
    return [{"name": name, "value": value, "url": origin} for name, value in _sent(request)]


def set_cookies(found: Sequence[Cookie], request: Fetch) -> str:
    """The cookies that the page has set, by header or by script, as lines of Set-Cookie."""
    known = set(_sent(request))
    return "\n".join(_line(cookie) for cookie in found if (cookie.get("name"), cookie.get("value")) not in known)


def _sent(request: Fetch) -> list[tuple[str, str]]:
    header = next((text for name, text in (request.headers or {}).items() if name.lower() == "cookie"), "")
    pairs = (pair.strip().partition("=") for pair in header.split(";"))
    return [(name, value) for name, _, value in pairs if name]


def _line(cookie: Cookie) -> str:
    domain = cookie.get("domain", "")
    expires = cookie.get("expires", -1)
    parts = [f"{cookie.get('name')}={cookie.get('value')}", f"Path={cookie.get('path') or '/'}"]
    parts += [f"Domain={domain}"] if domain.startswith(".") else []
    parts += [f"Expires={formatdate(expires, usegmt=True)}"] if expires and expires > 0 else []
    parts += ["Secure"] if cookie.get("secure") else []
    parts += ["HttpOnly"] if cookie.get("httpOnly") else []
    return "; ".join(parts)
