"""A server's URL as people may see it: the one place that knows what of a URL is secret."""

from __future__ import annotations

import re

_SECRET_OPTION = re.compile(
    r"([?&;][^=&;#]*(?:password|passwd|secret|token|key|credential|signature)[^=&;#]*=)[^&;#]*", re.IGNORECASE
)


def masked(url: str) -> str:
    """The URL without the password in front of its host and without secret options."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    # Up to the last @, wherever it is: one behind the host is a password's, written as it must not be.
    who, at, where = ("", "", rest) if rest.startswith("/") else rest.rpartition("@")
    name, colon, _ = who.partition(":")
    place = _SECRET_OPTION.sub(r"\1***", where)
    return f"{scheme}{separator}{name}{colon and ':***'}{at}{place}"
