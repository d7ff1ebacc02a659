"""Each alert fires once, and says when it is over; what could not be sent is sent again."""

from __future__ import annotations

import msgspec

from shoal.duties.alerts.config import Target
from shoal.duties.alerts.rules import Finding
from shoal.duties.alerts.state import (
    LONGEST_RETRY_SECONDS,
    MOST_ALERTS,
    PATIENCE_SECONDS,
    Message,
    Notes,
    due,
    failed,
    look,
    queued,
    read_notes,
    sent,
)

DEAD = Finding(alert="dead_letters", crawl="c", text="c: too many")
OPS = Target(name="ops", kind="webhook")
NIGHT = Target(name="night", kind="command", alerts=("no_progress",))


class Story:
    """One look after the other, a minute apart."""

    def __init__(self, hold: float = 60.0) -> None:
        self.notes = Notes()
        self.now = 1_000.0
        self.hold = hold

    def look(self, *found: Finding, ended: tuple[str, ...] = ()) -> list[str]:
        # As after a restart: all that is remembered are the notes.
        notes = read_notes(msgspec.json.encode(self.notes))
        self.notes, messages = look(notes, found, now=self.now, hold=self.hold, ended=ended)
        self.now += 60.0
        return [f"{message.state} {message.text}" for message in messages]


def test_an_alert_fires_once_and_says_when_it_is_over() -> None:
    story = Story()
    told = [story.look(*found) for found in ([DEAD], [DEAD], [DEAD], [], [], [])]
    assert told == [[], ["firing c: too many"], [], [], ["over c: too many"], []]
    assert not story.notes.alerts


def test_what_comes_and_goes_within_the_hold_is_not_told() -> None:
    story = Story(hold=90.0)
    assert not any(story.look(*found) for found in ([DEAD], [], [DEAD], [], [DEAD], []))


def test_an_alert_that_flaps_fires_once() -> None:
    story = Story()
    told = [line for found in ([DEAD], [DEAD], [], [DEAD], [], [DEAD], [], []) for line in story.look(*found)]
    assert told == ["firing c: too many", "over c: too many"]


def test_alerts_of_a_crawl_that_has_ended_are_over_at_once() -> None:
    story = Story()
    story.look(DEAD)
    story.look(DEAD)
    assert story.look(ended=("c",)) == ["over c: too many"]


def test_without_a_hold_it_fires_at_the_first_look() -> None:
    story = Story(hold=0.0)
    assert story.look(DEAD) == ["firing c: too many"]
    assert story.look() == ["over c: too many"]


def test_the_beginning_and_the_end_of_an_alert_have_one_id() -> None:
    notes, (first,) = look(Notes(), [DEAD], now=5.0, hold=0.0)
    _, (last,) = look(notes, [], now=9.0, hold=0.0)
    assert first.id == last.id


def test_texts_are_on_one_line_and_bounded() -> None:
    hostile = Finding(alert="worker_lost", crawl="c", about="a\nb", text="x\nBcc: you\x1b" * 100)
    _, (message,) = look(Notes(), [hostile], now=5.0, hold=0.0)
    assert message.text.isprintable()
    assert len(message.text) <= 500


def test_the_notes_do_not_grow_without_bound() -> None:
    many = [Finding(alert="disk_free", about=str(number), text="full") for number in range(MOST_ALERTS + 50)]
    notes, messages = look(Notes(), many, now=5.0, hold=0.0)
    assert (len(notes.alerts), len(messages)) == (MOST_ALERTS, MOST_ALERTS)


def test_notes_of_another_version_are_begun_anew() -> None:
    assert read_notes(b"") == read_notes(b"\xff") == read_notes(b'{"alerts": 7}') == Notes()


def message(state: str = "firing", alert: str = "dead_letters") -> Message:
    made = {"id": "1", "alert": alert, "state": state, "crawl": "c", "about": "", "text": "t", "since": "", "at": ""}
    return msgspec.convert(made, Message)


def test_a_target_is_told_what_it_wants_in_order() -> None:
    notes = queued(Notes(), [message(), message("over")], [OPS, NIGHT])
    assert due(notes, now=0.0) == {"ops": message()}
    notes = sent(notes, "ops")
    assert due(notes, now=0.0) == {"ops": message("over")}
    assert due(sent(notes, "ops"), now=0.0) == {}


def test_what_was_not_sent_is_tried_again_later_and_later() -> None:
    notes, now, pauses = queued(Notes(), [message()], [OPS]), 1_000.0, []
    for _ in range(12):
        notes = failed(notes, "ops", now=now)
        assert due(notes, now=now) == {}
        again = notes.queues["ops"].again
        pauses.append(again - now)
        now = again
        assert due(notes, now=now) == {"ops": message()}
    assert pauses[:3] == [5.0, 10.0, 20.0]
    assert pauses[-1] == LONGEST_RETRY_SECONDS


def test_a_target_that_is_away_for_a_day_holds_up_nothing_newer() -> None:
    notes = failed(queued(Notes(), [message(), message("over")], [OPS]), "ops", now=1.0)
    notes = failed(notes, "ops", now=2.0 + PATIENCE_SECONDS)
    assert due(notes, now=2.0 + PATIENCE_SECONDS) == {"ops": message("over")}


def test_targets_that_are_no_longer_there_are_forgotten() -> None:
    notes = queued(Notes(), [message()], [OPS])
    assert queued(notes, [], [NIGHT]).queues.keys() == {"night"}
