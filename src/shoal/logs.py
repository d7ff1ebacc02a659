"""Log lines of a crawl: events and records as fields without secrets, written as JSON or text.

The context variables name the current worker and page for log lines and traces.
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


# Set once per worker; tasks of its pages, and threads and tasks that a handler starts, inherit it.
WORK: Final[ContextVar[Work | None]] = ContextVar("shoal_work", default=None)
# Set once per page, to the lease itself: no other object is made for pages that log nothing.
PAGE: Final[ContextVar[Lease | None]] = ContextVar("shoal_page", default=None)


class Events:
    """Logs the events of one worker or crawl, if the logger has a level."""

    def __init__(self, *, crawl: str = "", worker: str = "") -> None:
        self._who = {"crawl": crawl, "worker": worker}
        self._logger = logging.getLogger(EVENTS)

    def is_on(self, level: int) -> bool:
        """Whether events of this level are logged. Callers ask once, to spare every page the cost."""
        return self._logger.level != logging.NOTSET and self._logger.isEnabledFor(level)

    def tell(self, level: int, event: str, lease: Lease | None = None, **fields: Any) -> None:
        """Log one event, without its empty fields."""
        if self.is_on(level):
            told = {**self._who, **page_fields(lease), **fields}
            self._logger.log(level, event, extra={FIELDS: told})

    def tell_said(self, level: int, event: str, **fields: Any) -> None:
        """Log one event that is also a message to people: a text log leaves it out."""
        self.tell(level, event, None, **{SAID: True, **fields})


EVENTS: Final = "shoal.events"
SPIDERS: Final = "shoal.spider"
FIELDS: Final = "shoal_fields"  # the attribute of a record that holds the fields of an event
SAID: Final = "said"  # marks an event that is also a message to people

LONGEST_TEXT: Final = 2_000
LONGEST_MESSAGE: Final = 10_000
MOST_EXTRAS: Final = 30
KEYS: Final = 2**64

# What JSON does not escape, but terminals obey or some readers treat as the end of a line.
_CONTROLS: Final = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_ALL_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_PLAIN: Final = re.compile(r"[^\s\"=]+")
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", FIELDS}


def page_fields(lease: Lease | None) -> dict[str, Any]:
    """The fields that identify a page: its key as in `shoal why`, its URL without secrets, its host."""
    if lease is None:
        return {}
    task = lease.task
    return {"key": f"{task.key % KEYS:016x}", "url": masked_page_url(task.url), "host": task.lane}


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """A record as fields, in reading order, with values that fit on a line."""
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
    """A message to people as fields."""
    level = "error" if line.startswith("shoal: ") else "info"
    message = _safe(_cut(line, LONGEST_MESSAGE), [], is_long=True)
    return {"time": time_of(now), "level": level, "event": "message", "message": message}


def as_json(fields: Mapping[str, Any]) -> str:
    """The fields as one JSON object on one line."""
    text = msgspec.json.encode(fields).decode()
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def as_text(fields: Mapping[str, Any]) -> str:
    """The fields as a line for people: time of day, level, event; an indented traceback follows."""
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
    """The text on one line, its control characters escaped."""
    return _ALL_CONTROLS.sub(lambda match: _shown(match[0]), text)


def time_of(seconds: float) -> str:
    """A time in ISO 8601, UTC."""
    moment = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(character: str) -> str:
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character) or f"\\x{ord(character):02x}"


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:
        # Arguments that do not fit the format: a raw line is better than none.
        return f"{record.msg} {record.args}"


def _extras(record: logging.LogRecord, *, taken: set[str]) -> dict[str, Any]:
    """The spider's `extra` fields, except names that are taken."""
    own = [name for name in vars(record) if name not in _STANDARD and name not in taken]
    return {name: getattr(record, name) for name in own[:MOST_EXTRAS]}


def _safe(value: Any, secrets: list[str], *, is_long: bool) -> Any:
    """A JSON value: numbers unchanged, everything else as text without secrets."""
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
