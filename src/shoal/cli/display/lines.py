"""Text for terminals: without control characters, on one line, to a stream."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from typing import Any, TextIO

# A page's text may contain control characters that a terminal would obey: they are shown as \xNN.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

Say = Callable[[str], None]


def shown(value: Any) -> str:
    """A value as text, its control characters made visible."""
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", str(value).replace("\r\n", "\n"))


def one_line(value: Any, limit: int = 0) -> str:
    """The same on one line; limit: cut to this length, 0: uncut."""
    text = " ".join(shown(value).split())
    return text[: limit - 1] + "…" if limit and len(text) > limit else text


def say_on(stream: TextIO) -> Say:
    """A function that writes lines to a stream. Without rich: loading it takes a tenth of a worker's start."""

    def say(line: str) -> None:
        stream.write(shown(line) + "\n")
        stream.flush()

    return say


class SpiderOutput(io.TextIOBase):
    """The stream for a spider's prints: control characters made visible; a closed pipe must not fail the page."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(BrokenPipeError):
            self._stream.write(shown(text))
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._stream.flush()
