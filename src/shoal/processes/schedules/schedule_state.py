"""What is known of each schedule's runs: noted in the frontier by the coordinator that starts them."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from shoal.processes.schedules.due_times import written
from shoal.processes.schedules.schedule_config import Schedule

MOST_KEPT: Final = 100
MOST_ANSWERED: Final = 50
LONGEST_REASON: Final = 300

RunState = Literal[
    "queued", "starting", "running", "finished", "stopped", "failed", "cancelled", "interrupted", "skipped", "missed"
]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a schedule, or why there was none. `run` names it for ever: a process that is started for it a second
    time goes on with the same crawl. `number`: so many runs in a row were skipped or missed, `due` is the last one."""

    run: str
    due: float
    state: RunState
    started: float = 0.0
    ended: float = 0.0
    crawl: str = ""
    reason: str = ""
    log: str = ""
    number: int = 1


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True):
    """Where a schedule stands. Due times up to `passed` are dealt with. `current` is the run that starts or goes on,
    `waiting` the one that is queued behind it; `answered` are the requests to run at once that were dealt with."""

    rhythm: str = ""
    passed: float = 0.0
    paused: bool = False
    current: Entry | None = None
    waiting: Entry | None = None
    history: tuple[Entry, ...] = ()
    answered: tuple[str, ...] = ()

    @property
    def last(self) -> Entry | None:
        """The newest line of the history."""
        return self.history[-1] if self.history else None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody's wish that a schedule runs at once."""

    id: str
    schedule: str
    at: float


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """All that a coordinator has to remember. `filed` are the schedules of its shoal.toml, for commands elsewhere."""

    states: dict[str, ScheduleState] = msgspec.field(default_factory=dict)
    filed: dict[str, Schedule] = msgspec.field(default_factory=dict)


def read_notes(data: bytes) -> Notes:
    """The notes; none where there are none, or another version wrote them: then nothing before now is due."""
    try:
        return msgspec.json.decode(data, type=Notes) if data else Notes()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Notes()


def run_name(schedule: Schedule, due: float, *, asked: Asked | None = None) -> str:
    """The name of a run, the same for every coordinator."""
    moment = written(due).replace(" ", "T").replace("+00:00", "Z")
    return f"{schedule.name}@{moment}" if asked is None else f"{schedule.name}@{moment}-{asked.id}"


def kept(state: ScheduleState, entry: Entry) -> ScheduleState:
    """The state with one more line of history. Lines in a row that say the same become one that counts."""
    entry = msgspec.structs.replace(entry, reason=entry.reason[:LONGEST_REASON])
    last = state.last
    if (
        last is not None
        and entry.state in ("skipped", "missed")
        and (last.state, last.reason) == (entry.state, entry.reason)
    ):
        merged = msgspec.structs.replace(entry, number=last.number + entry.number, started=last.started)
        return msgspec.structs.replace(state, history=(*state.history[:-1], merged))
    return msgspec.structs.replace(state, history=(*state.history, entry)[-MOST_KEPT:])
