"""Lines that people may see: nothing in them can steer a terminal, and no password is left in them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TextIO

# What a page says may steer a terminal; here it is only shown.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
# In front of the host, or among the options.
_PASSWORD = re.compile(r"((?<=://)[^:/?#]*:|[?&](?:sentinel_|ssl_)?password=)(?:(?<==)[^&#]*|[^/?#]*(?=@))")

Say = Callable[[str], None]


def shown(value: Any) -> str:
    """A value as text that cannot do anything to a terminal."""
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", str(value).replace("\r\n", "\n"))


def one_line(value: Any, limit: int = 0) -> str:
    """The same on one line, cut to a limit if one is given."""
    text = " ".join(shown(value).split())
    return text[: limit - 1] + "…" if limit and len(text) > limit else text


def say_on(stream: TextIO) -> Say:
    """Says line after line. What a worker needs: to load rich would be a tenth of its start."""

    def say(line: str) -> None:
        stream.write(shown(line) + "\n")
        stream.flush()

    return say
