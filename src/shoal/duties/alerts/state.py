"""The state of alerts: which fire, which are over, and the messages that wait to be sent. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal

import msgspec

from shoal.duties.alerts.config import Target
from shoal.duties.alerts.rules import Finding
from shoal.logs import escaped, time_of

MOST_ALERTS: Final = 200
MOST_WAITING: Final = 200
LONGEST_TEXT: Final = 500
FIRST_RETRY_SECONDS: Final = 5.0
LONGEST_RETRY_SECONDS: Final = 900.0
PATIENCE_SECONDS: Final = 86_400.0

MessageState = Literal["firing", "over", "test"]


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A finding over time. `since`: when it was first found; `fired`: when it fired, 0 before; `absent`: when it was
    first not found any more, 0 while it is found."""

    alert: str
    crawl: str = ""
    about: str = ""
    text: str = ""
    since: float
    fired: float = 0.0
    absent: float = 0.0

    @property
    def is_firing(self) -> bool:
        return self.fired > 0


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message for people. `id` is the same for the beginning and the end of one alert."""

    id: str
    alert: str
    state: MessageState
    crawl: str
    about: str
    text: str
    since: str
    at: str

    @property
    def line(self) -> str:
        """The message in one line."""
        return f"{'over: ' if self.state == 'over' else 'TEST: ' if self.state == 'test' else ''}{self.text}"


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that wait for one target, in order; for the first one, how often it failed, since when, and when it
    is tried again."""

    messages: tuple[Message, ...] = ()
    tries: int = 0
    since: float = 0.0
    again: float = 0.0


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """The notes of the duty, kept in the frontier. `watched`: the crawls that were unfinished at the last check."""

    alerts: dict[str, Alert] = msgspec.field(default_factory=dict)
    queues: dict[str, Queue] = msgspec.field(default_factory=dict)
    looked: float = 0.0
    watched: tuple[str, ...] = ()


def read_notes(data: bytes) -> Notes:
    """The notes; empty ones if there are none, or another version wrote them."""
    try:
        return msgspec.json.decode(data, type=Notes) if data else Notes()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Notes()


def look(
    notes: Notes, found: Iterable[Finding], *, now: float, hold: float, ended: Collection[str] = ()
) -> tuple[Notes, list[Message]]:
    """The notes after a check, and the new messages. A finding fires after it was found for `hold` seconds, and is over
    after it was not found for as long; at once for crawls in `ended`, which do not change any more."""
    alerts, messages = dict(notes.alerts), []
    present = {finding.key: finding for finding in found}
    for key, finding in present.items():
        text = escaped(finding.text)[:LONGEST_TEXT]
        alert = alerts.get(key)
        if alert is None:
            if len(alerts) >= MOST_ALERTS:
                continue
            alert = Alert(alert=finding.alert, crawl=finding.crawl, about=escaped(finding.about), since=now)
        alert = msgspec.structs.replace(alert, text=text, absent=0.0)
        if not alert.is_firing and (now - alert.since >= hold or alert.crawl in ended):
            alert = msgspec.structs.replace(alert, fired=now)
            messages.append(message_of(alert, "firing", now=now))
        alerts[key] = alert
    for key, alert in list(alerts.items()):
        if key in present:
            continue
        absent = alert.absent or now
        is_over = now - absent >= hold or alert.crawl in ended
        if is_over and alert.is_firing:
            messages.append(message_of(alert, "over", now=now))
        if is_over or not alert.is_firing:
            del alerts[key]
        else:
            alerts[key] = msgspec.structs.replace(alert, absent=absent)
    return msgspec.structs.replace(notes, alerts=alerts, looked=now), messages


def queued(notes: Notes, messages: Sequence[Message], targets: Sequence[Target]) -> Notes:
    """The notes with these messages to send. Targets that are no longer there are forgotten."""
    queues = {}
    for target in targets:
        queue = notes.queues.get(target.name, Queue())
        wanted = tuple(message for message in messages if target.wants(message.alert))
        queues[target.name] = msgspec.structs.replace(queue, messages=(*queue.messages, *wanted)[:MOST_WAITING])
    return msgspec.structs.replace(notes, queues=queues)


def overflow(notes: Notes, messages: Sequence[Message], targets: Sequence[Target]) -> dict[str, int]:
    """How many of these messages find no room in the queue of a target, by its name."""
    counts = {
        target.name: len(notes.queues.get(target.name, Queue()).messages)
        + sum(target.wants(message.alert) for message in messages)
        - MOST_WAITING
        for target in targets
    }
    return {name: number for name, number in counts.items() if number > 0}


def due(notes: Notes, *, now: float) -> dict[str, Message]:
    """The first message of each target whose pause is over."""
    return {name: queue.messages[0] for name, queue in notes.queues.items() if queue.messages and queue.again <= now}


def sent(notes: Notes, target: str) -> Notes:
    """The notes after the first message of a target was sent."""
    queue = notes.queues[target]
    return _with(notes, target, Queue(messages=queue.messages[1:]))


def failed(notes: Notes, target: str, *, now: float) -> Notes:
    """The notes after the first message failed: retried with growing pauses, dropped after a day."""
    queue = notes.queues[target]
    since = queue.since or now
    if now - since > PATIENCE_SECONDS:
        return _with(notes, target, Queue(messages=queue.messages[1:]))
    pause = min(FIRST_RETRY_SECONDS * 2**queue.tries, LONGEST_RETRY_SECONDS)
    again = msgspec.structs.replace(queue, tries=min(queue.tries + 1, 30), since=since, again=now + pause)
    return _with(notes, target, again)


def message_of(alert: Alert, state: MessageState, *, now: float) -> Message:
    """The message about an alert."""
    return Message(
        id=f"{alert.alert}/{alert.crawl}/{alert.about}@{alert.fired:.0f}",
        alert=alert.alert,
        state=state,
        crawl=alert.crawl,
        about=alert.about,
        text=alert.text,
        since=time_of(alert.since),
        at=time_of(now),
    )


def _with(notes: Notes, target: str, queue: Queue) -> Notes:
    return msgspec.structs.replace(notes, queues={**notes.queues, target: queue})
