"""Log lines: the fields of a record without secrets, as one JSON object or as one line of text. Pure functions.

What the code that runs now works on: its worker, and the page in hand. Log lines and traces are told apart by it.

Events of a crawl for logs: what happened to a page, a worker, a server. Each is one line.
"""

from __future__ import annotations

import datetime
import logging
import math
import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

import msgspec

from shoal.model import Lease
from shoal.text.errors import traceback_of
from shoal.text.secrets import masked_page_url, secrets_in, without


class Work(NamedTuple):
    """A worker and its crawl."""

    crawl: str
    worker: str


# Set once per worker: the tasks of its pages inherit it, and so do threads and tasks that a handler starts.
WORK: Final[ContextVar[Work | None]] = ContextVar("shoal_work", default=None)
# Set once per page, to the lease itself: nothing is built for pages of which nothing is logged.
PAGE: Final[ContextVar[Lease | None]] = ContextVar("shoal_page", default=None)


class Events:
    """Tells the events of one worker or one crawl, where somebody wants them: the logger has a level then."""

    def __init__(self, *, crawl: str = "", worker: str = "") -> None:
        self._who = {"crawl": crawl, "worker": worker}
        self._logger = logging.getLogger(EVENTS)

    def is_on(self, level: int) -> bool:
        """Whether events of this level are logged. Asked once, where an event would cost every page something."""
        return self._logger.level != logging.NOTSET and self._logger.isEnabledFor(level)

    def tell(self, level: int, event: str, lease: Lease | None = None, **fields: Any) -> None:
        """Log one event. A field that is empty is left out."""
        if self.is_on(level):
            told = {**self._who, **page_fields(lease), **fields}
            self._logger.log(level, event, extra={FIELDS: told})

    def tell_said(self, level: int, event: str, **fields: Any) -> None:
        """Log one event of which people are told in a line of its own: a log for people leaves it out."""
        self.tell(level, event, None, **{SAID: True, **fields})


EVENTS: Final = "shoal.events"
SPIDERS: Final = "shoal.spider"
FIELDS: Final = "shoal_fields"  # the attribute of a record that holds the fields of an event
SAID: Final = "said"  # of an event that people are told anyway, in words of its own

LONGEST_TEXT: Final = 2_000
LONGEST_MESSAGE: Final = 10_000
MOST_EXTRAS: Final = 30
KEYS: Final = 2**64

# Beyond what JSON escapes by itself: what a terminal obeys, or what some readers take for the end of a line.
_CONTROLS: Final = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_ALL_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_PLAIN: Final = re.compile(r"[^\s\"=]+")
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", FIELDS}


def page_fields(lease: Lease | None) -> dict[str, Any]:
    """What tells a page apart: its key as `shoal why` shows it, its URL without secrets, its host."""
    if lease is None:
        return {}
    task = lease.task
    return {"key": f"{task.key % KEYS:016x}", "url": masked_page_url(task.url), "host": task.lane}


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """A record as fields, in the order in which people read them. What no line can hold is shown instead."""
    given: Mapping[str, Any] = getattr(record, FIELDS, {})
    work, lease = WORK.get(), PAGE.get()
    is_event = record.name == EVENTS
    who = {} if is_event else {**({} if work is None else work._asdict()), **page_fields(lease)}
    secrets = secrets_in(lease.task.headers) if lease is not None else []
    fields = {
        "time": time_of(record.created),
        "level": record.levelname.lower(),
        "event": record.getMessage() if is_event else "spider" if record.name.startswith(SPIDERS) else "message",
        **{name: value for name, value in who.items() if value},
        **{name: value for name, value in given.items() if name != SAID and value not in ("", None)},
    }
    if not is_event:
        fields["logger"] = record.name.removeprefix(f"{SPIDERS}.")
        fields["message"] = _cut(_message_of(record), LONGEST_MESSAGE)
        fields |= _extras(record, taken=fields.keys() | {"exception"})
    if record.exc_info and record.exc_info[1] is not None:
        fields["exception"] = traceback_of(record.exc_info[1], secrets=secrets)
    return {name: _safe(value, secrets, is_long=name in ("message", "exception")) for name, value in fields.items()}


def message_fields(line: str, *, now: float) -> dict[str, Any]:
    """A line that was written for people, as fields."""
    level = "error" if line.startswith("shoal: ") else "info"
    message = _safe(_cut(line, LONGEST_MESSAGE), [], is_long=True)
    return {"time": time_of(now), "level": level, "event": "message", "message": message}


def as_json(fields: Mapping[str, Any]) -> str:
    """The fields as one JSON object on one line, whatever they hold."""
    text = msgspec.json.encode(fields).decode()
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def as_text(fields: Mapping[str, Any]) -> str:
    """The fields as a line for people: the time of day, the level, what happened. The lines of a traceback follow it,
    indented."""
    rest = dict(fields)
    day, level, event = rest.pop("time"), rest.pop("level"), rest.pop("event")
    trace, message, logger = rest.pop("exception", ""), rest.pop("message", None), rest.pop("logger", "")
    if message is not None:
        event = f"{logger}: {message}"
        rest = {name: value for name, value in rest.items() if name not in ("crawl", "worker", "key", "host")}
    pairs = [f"{name}={_quoted(value)}" for name, value in rest.items()]
    moment = datetime.datetime.fromisoformat(day).astimezone()
    first = " ".join([f"{moment:%H:%M:%S}", level.upper(), escaped(event), *pairs])
    return "\n".join([first, *(f"    {escaped(line)}" for line in trace.splitlines())])


def escaped(text: str) -> str:
    """The text on one line, its control characters shown."""
    return _ALL_CONTROLS.sub(lambda match: _shown(match[0]), text)


def time_of(seconds: float) -> str:
    """A time as ISO 8601 has it, in UTC."""
    moment = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(character: str) -> str:
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character) or f"\\x{ord(character):02x}"


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:
        # Arguments that do not fit their text: the line is worth more than the mistake in it.
        return f"{record.msg} {record.args}"


def _extras(record: logging.LogRecord, *, taken: set[str]) -> dict[str, Any]:
    """What the spider gave as `extra`; names that are taken stay what they are."""
    own = [name for name in vars(record) if name not in _STANDARD and name not in taken]
    return {name: getattr(record, name) for name in own[:MOST_EXTRAS]}


def _safe(value: Any, secrets: list[str], *, is_long: bool) -> Any:
    """A value that JSON has: numbers as they are, everything else as text without secrets."""
    if value is None or isinstance(value, bool | int):
        return value if not isinstance(value, int) or abs(value) < 2**63 else str(value)
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else str(value)
    try:
        text = str(value)
    except Exception:
        text = "(no text)"
    text = text if is_long else _cut(text, LONGEST_TEXT)
    return masked_page_url(without(secrets, text.encode("utf-8", "backslashreplace").decode()))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _quoted(value: Any) -> str:
    text = escaped(str(value))
    if _PLAIN.fullmatch(text):
        return text
    inner = text.replace('"', '\\"')
    return f'"{inner}"'
