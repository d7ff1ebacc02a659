"""Log output of a process: text lines beside the messages, or JSON, one object per line, for everything."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TextIO

from shoal.logs import EVENTS, FIELDS, SAID, SPIDERS, as_json, as_text, fields_of, message_fields
from shoal.settings.table import LOG_FORMAT_VARIABLE, LOG_LEVEL_VARIABLE, LOG_MARK_VARIABLE

LogFormat = Literal["text", "json"]
LEVELS: Final = ("debug", "info", "warning", "error")
SHOAL: Final = "shoal"
MARK_BYTES: Final = 12
_OFF: Final = logging.CRITICAL + 1


def begin_logs(form: LogFormat, level: str | None, *, is_of_fleet: bool = False) -> None:
    """Let this process and the workers that it starts log in this form, from this level on.

    Without a level: text logs the warnings of spiders only, since messages say the rest; JSON logs everything but
    successful pages. is_of_fleet: a coordinator reads the output of this process."""
    os.environ[LOG_FORMAT_VARIABLE] = form
    if level is not None:
        os.environ[LOG_LEVEL_VARIABLE] = level
    if form == "json":
        _begin_json(logging.getLevelName((level or "info").upper()), is_of_fleet=is_of_fleet)
        return
    _listen(SPIDERS, TextLog(), logging.getLevelName((level or "warning").upper()))
    _listen(EVENTS, TextLog(), _OFF if level is None else logging.getLevelName(level.upper()))


def _begin_json(level: int, *, is_of_fleet: bool) -> None:
    mark = os.environ.get(LOG_MARK_VARIABLE, "") if is_of_fleet else ""
    lines = JsonLines(sys.stderr, prefix=mark)
    if not is_of_fleet:
        os.environ[LOG_MARK_VARIABLE] = lines.passes = secrets.token_hex(MARK_BYTES)
    sys.stderr = lines
    _listen(SHOAL, JsonLog(lines), level)
    logging.getLogger(EVENTS).setLevel(level)


def _listen(name: str, handler: logging.Handler, level: int) -> None:
    logger = logging.getLogger(name)
    for former in list(logger.handlers):
        logger.removeHandler(former)
    logger.addHandler(handler)
    logger.setLevel(level)
    # A spider file that configures logging would print each line twice.
    logger.propagate = False


class TextLog(logging.Handler):
    """Writes to the current sys.stderr, so that a live display is not damaged."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, FIELDS, {}).get(SAID):
            return
        with contextlib.suppress(BrokenPipeError):
            sys.stderr.write(as_text(fields_of(record)) + "\n")
            sys.stderr.flush()


class JsonLog(logging.Handler):
    """Writes each record as one JSON object."""

    def __init__(self, lines: JsonLines) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.put(fields_of(record))


class JsonLines(io.TextIOBase):
    """Replaces standard error: every line written for people becomes a JSON object too.

    prefix: a secret mark before each object of a worker, so that page text cannot forge a log line. passes: the mark
    by which a coordinator recognises its workers' objects and passes them on."""

    def __init__(
        self, stream: TextIO, *, prefix: str = "", passes: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        self._stream = stream
        self._prefix = prefix
        self.passes = passes
        self._clock = clock
        self._rest = ""
        self._lock = threading.RLock()

    def put(self, fields: Mapping[str, Any]) -> None:
        """Write one object."""
        self._write(self._prefix + as_json(fields))

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self._pass_on(line)
        return len(text)

    def flush(self) -> None:
        with self._lock:
            rest, self._rest = self._rest, ""
            self._pass_on(rest)

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._stream.fileno()

    def _pass_on(self, line: str) -> None:
        if self.passes and line.startswith(self.passes):
            self._write(self._prefix + line.removeprefix(self.passes))
        elif line.strip():
            self.put(message_fields(line.rstrip("\r"), now=self._clock()))

    def _write(self, line: str) -> None:
        with self._lock, contextlib.suppress(BrokenPipeError):
            self._stream.write(line + "\n")
            self._stream.flush()
