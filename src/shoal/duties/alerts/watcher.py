"""The alert watcher: checks the crawls of a frontier and sends messages to people. One process of several has the duty.

A message is noted before it is sent and removed afterwards: a kill in between sends it twice with one id. The other
order would lose it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from shoal.crawl.duty_notes import read_noted
from shoal.crawl.opening import Places
from shoal.crawl.places import path_of
from shoal.crawl.record import is_unfinished
from shoal.duties.alerts.config import AlertConfig, Target
from shoal.duties.alerts.rules import (
    Disk,
    Finding,
    WatchedCrawl,
    disk_findings,
    findings_of,
    schedule_findings,
    sink_findings,
)
from shoal.duties.alerts.senders import NotSent, send
from shoal.duties.alerts.state import Alert, Message, Notes, due, failed, look, overflow, queued, read_notes, sent
from shoal.duties.schedules.scheduler import schedule_notes
from shoal.errors import ShoalError
from shoal.frontier.base import Frontier
from shoal.model import Crawl, Heartbeat
from shoal.store.base import SinkState
from shoal.text.errors import line_of
from shoal.worker.outages import until_reachable
from shoal.worker.workers import workers_of

DUTY: Final = "alerts"
# The duty of a killed watcher expires after at least this time. It is renewed while messages are sent.
SHORTEST_DUTY_SECONDS: Final = 10.0
MOST_CRAWLS: Final = 50
MOST_ROUNDS: Final = 20
WRITES_SECONDS: Final = 60.0
HISTORY_SLACK_SECONDS: Final = 60.0
LAST_LOOK_SECONDS: Final = 20.0

SinksOf = Callable[[], Awaitable[Sequence[SinkState]]]


async def alerts_now(frontier: Frontier) -> list[Alert]:
    """The alerts of a frontier, firing ones first. Does not take the duty."""
    _, data = await read_noted(frontier, DUTY)
    return sorted(read_notes(data).alerts.values(), key=lambda alert: (not alert.is_firing, alert.since))


class AlertWatcher:
    """Checks every unfinished crawl of the frontier while it has the duty, and sends messages.

    `sinks` returns the sinks to check; `paths` are files and folders whose disks are checked."""

    def __init__(
        self,
        config: AlertConfig,
        *,
        frontier: Frontier,
        say: Callable[[str], None],
        paths: Sequence[str] = (),
        sinks: SinksOf | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._frontier = frontier
        self._say = say
        self._paths = paths
        self._sinks_of = sinks
        self._sinks: Sequence[SinkState] = ()
        self._clock = clock
        self._holder = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._duty_seconds = max(SHORTEST_DUTY_SECONDS, 3 * config.every)
        self._term = 0
        self._writes: dict[str, WriteTimes] = {}
        self._failing: set[str] = set()
        self._trouble = ""

    async def run(self) -> None:
        """Check every `every` seconds until cancelled. An error is reported once and retried."""
        while True:
            await self._look_in_peace()
            await asyncio.sleep(self._config.every)

    async def finish(self, *, looks: bool) -> None:
        """Release the duty; `looks`: check once more before."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_LOOK_SECONDS):
                if looks:
                    await self._look_in_peace()
                with contextlib.suppress(ShoalError):
                    await self._frontier.hold_duty(DUTY, self._holder, seconds=0.0)

    async def look(self) -> bool:
        """Check once and send what is due, if the duty is ours; returns whether it is."""
        held = await self._frontier.hold_duty(DUTY, self._holder, seconds=self._duty_seconds)
        if not held.is_ours:
            self._writes.clear()
            return False
        self._term = held.term
        now, notes = self._clock(), read_notes(held.notes)
        crawls = {crawl.id: crawl for crawl in await self._frontier.crawls() if not crawl.refusal}
        watched = self._watched(crawls, notes)
        found = await self._findings(watched)
        known = {*notes.watched, *(alert.crawl for alert in notes.alerts.values() if alert.crawl)}
        ended = {name for name in known if name not in crawls or not is_unfinished(crawls[name].state)}
        notes, messages = look(notes, found, now=now, hold=self._config.hold, ended=ended)
        notes = msgspec.structs.replace(notes, watched=tuple(name for name in watched if name not in ended))
        for target, number in overflow(notes, messages, self._config.targets).items():
            self._say(f"{number} alerts for {target} are given up: too many wait to be sent already")
        notes = queued(notes, messages, self._config.targets)
        await self._send(notes)
        return True

    async def _look_in_peace(self) -> None:
        try:
            await until_reachable(self.look, say=self._say)
            self._trouble = ""
        except Exception as error:
            line = str(error) if isinstance(error, ShoalError) else line_of(error)
            if line != self._trouble:
                self._say(f"alerts: {line}; trying again")
            self._trouble = line

    async def _keep(self, notes: Notes | None = None) -> bool:
        """Renew the duty and write the notes; returns whether the duty is still ours. It is not if another process had
        it since the notes were read, even if that one has released it: its notes must not be overwritten."""
        data = None if notes is None else msgspec.json.encode(notes)
        held = await self._frontier.hold_duty(
            DUTY, self._holder, seconds=self._duty_seconds, notes=data, term=self._term
        )
        return held.is_ours

    def _watched(self, crawls: Mapping[str, Crawl], notes: Notes) -> dict[str, Crawl]:
        """The crawls to check: unfinished ones, those that were unfinished at the last check, those with an alert."""
        unfinished = [one for one in crawls.values() if is_unfinished(one.state) and self._is_watched(one)]
        former = [*notes.watched, *(alert.crawl for alert in notes.alerts.values())]
        wanted = {crawl.id: crawl for crawl in unfinished[:MOST_CRAWLS]}
        return wanted | {name: crawls[name] for name in former if name in crawls}

    async def _findings(self, crawls: Mapping[str, Crawl]) -> list[Finding]:
        found: list[Finding] = []
        for crawl in crawls.values():
            found += findings_of(await self._read_crawl(crawl), self._config.rules)
        for gone in self._writes.keys() - crawls.keys():
            del self._writes[gone]
        if self._config.rules.disk_free is not None:
            found += disk_findings(await asyncio.to_thread(disks_of, self._paths), self._config.rules)
        if self._config.rules.schedule_failed:
            _, noted = await schedule_notes(self._frontier)
            found += schedule_findings(noted.states, self._config.rules)
        if self._config.rules.sink_behind is not None and self._sinks_of is not None:
            await self._look_at_sinks(self._sinks_of)
            found += sink_findings(self._sinks, self._config.rules, now=self._clock())
        return found

    async def _look_at_sinks(self, sinks_of: SinksOf) -> None:
        """Read the sinks. If the store does not answer, the last reading stays: an outage does not end an alert."""
        with contextlib.suppress(ShoalError, OSError):
            sinks = await sinks_of()
            wanted = self._config.spiders
            self._sinks = [sink for sink in sinks if not wanted or sink.place.spider in wanted]

    def _is_watched(self, crawl: Crawl) -> bool:
        return not self._config.spiders or crawl.spider in self._config.spiders

    async def _read_crawl(self, crawl: Crawl) -> WatchedCrawl:
        rules = self._config.rules
        seconds = rules.longest + HISTORY_SLACK_SECONDS
        points = await self._frontier.points(crawl.id, seconds=seconds)
        crew = await workers_of(crawl.id, frontier=self._frontier)
        progress = await self._frontier.progress(crawl.id)
        times = self._writes.setdefault(crawl.id, WriteTimes())
        now = self._clock()
        mean = times.read([member.beat for member in crew], now=now)
        return WatchedCrawl(crawl=crawl, progress=progress, now=now, points=points, crew=crew, write_seconds=mean)

    async def _send(self, notes: Notes) -> None:
        """Send what is due; each target gets its messages in order."""
        targets = {target.name: target for target in self._config.targets}
        for _ in range(MOST_ROUNDS):
            # Noted before it is sent: else a kill would lose the message.
            has_duty = await self._keep(notes)
            waiting = due(notes, now=self._clock())
            if not has_duty or not waiting:
                return
            told = await self._tell_all([(targets[name], message) for name, message in waiting.items()])
            for name, is_told in zip(waiting, told, strict=True):
                later = sent(notes, name) if is_told else failed(notes, name, now=self._clock())
                if not is_told and len(later.queues[name].messages) < len(notes.queues[name].messages):
                    self._say(f"the alert {waiting[name].alert} is given up: {name} could not be told for a day")
                notes = later
        await self._keep(notes)

    async def _tell_all(self, messages: Sequence[tuple[Target, Message]]) -> list[bool]:
        """Send to each target, and renew the duty as long as that takes."""
        renewing = asyncio.create_task(self._keep_duty())
        try:
            return await asyncio.gather(*(self._tell(target, message) for target, message in messages))
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _keep_duty(self) -> None:
        while True:
            await asyncio.sleep(self._duty_seconds / 3)
            with contextlib.suppress(ShoalError):
                await self._keep()

    async def _tell(self, target: Target, message: Message) -> bool:
        try:
            await send(target, message)
        except NotSent as error:
            if target.name not in self._failing:
                self._say(f"the alert {message.alert} could not be sent to {target.name}: {error}; trying again")
            self._failing.add(target.name)
            return False
        self._failing.discard(target.name)
        return True


class WriteTimes:
    """The mean time of recent writes to a store, from the totals of workers."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, dict[str, tuple[int, float]]]] = deque()

    def read(self, beats: Iterable[Heartbeat], *, now: float) -> float | None:
        """Add a reading; returns the mean of the last minute, None without writes."""
        totals = {beat.worker: (beat.figures.writes, beat.figures.write_seconds) for beat in beats}
        self._readings.append((now, totals))
        while len(self._readings) > 2 and now - self._readings[1][0] >= WRITES_SECONDS:
            self._readings.popleft()
        before = self._readings[0][1]
        writes, seconds = 0, 0.0
        for worker, (count, spent) in totals.items():
            then, spent_then = before.get(worker, (0, 0.0))
            # A restarted worker counts from zero.
            if count >= then and worker in before:
                writes, seconds = writes + count - then, seconds + spent - spent_then
        return seconds / writes if writes else None


def disks_of(paths: Iterable[str]) -> list[Disk]:
    """The disks of these files and folders, each once."""
    found: dict[int, Disk] = {}
    for path in paths:
        folder = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
        with contextlib.suppress(OSError):
            usage = shutil.disk_usage(folder)
            found.setdefault(os.stat(folder).st_dev, Disk(folder, usage.free, usage.total))
    return list(found.values())


def local_paths(places: Places) -> list[str]:
    """The files and folders of a crawl on this machine."""
    named = [places.frontier, places.store, places.archive or ""]
    return [path for place in named if place and (path := path_of(place)) is not None]
