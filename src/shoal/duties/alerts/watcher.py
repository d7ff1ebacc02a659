"""Watches the crawls of a frontier and tells people of what is worth an alert. Of several watchmen one has the duty."""

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
from shoal.duties.alerts.rules import Disk, Finding, Sight, disk_findings, findings_of, schedule_findings, sink_findings
from shoal.duties.alerts.senders import NotSent, send
from shoal.duties.alerts.state import Alert, Message, Notes, due, failed, look, overflow, queued, read_notes, sent
from shoal.duties.schedules.scheduler import schedule_notes
from shoal.errors import ShoalError
from shoal.frontier.base import Frontier
from shoal.model import Crawl, WorkerBeat
from shoal.store.base import SinkState
from shoal.text.errors import line_of
from shoal.worker.outages import until_reachable
from shoal.worker.workers import crew_of

DUTY: Final = "alerts"
# How long a watchman that died keeps the others from its duty, at least. It is renewed while messages are sent.
SHORTEST_DUTY_SECONDS: Final = 10.0
MOST_CRAWLS: Final = 50
MOST_ROUNDS: Final = 20
WRITES_SECONDS: Final = 60.0
HISTORY_SLACK_SECONDS: Final = 60.0
LAST_LOOK_SECONDS: Final = 20.0

SinksOf = Callable[[], Awaitable[Sequence[SinkState]]]


async def alerts_now(frontier: Frontier) -> list[Alert]:
    """The alerts of a frontier, those that fire first. Takes no duty."""
    _, data = await read_noted(frontier, DUTY)
    return sorted(read_notes(data).alerts.values(), key=lambda alert: (not alert.is_firing, alert.since))


class Watchman:
    """Looks at every unfinished crawl of the frontier, as long as it has the duty, and sends messages.

    Messages are noted before they are sent and crossed out afterwards: none is lost with a watchman, and only one that
    was on its way when its watchman died may come twice."""

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
        """Watch until cancelled. An error is said once; the crawl does not suffer from it."""
        while True:
            await self._look_in_peace()
            await asyncio.sleep(self._config.every)

    async def finish(self, *, looks: bool) -> None:
        """Leave the duty to others, after a last look if one is wanted."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_LOOK_SECONDS):
                if looks:
                    await self._look_in_peace()
                with contextlib.suppress(ShoalError):
                    await self._frontier.hold_duty(DUTY, self._holder, seconds=0.0)

    async def look(self) -> bool:
        """Look once, if the duty is ours, and send what is due; gives whether it is."""
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
        """Keep the duty that this look has; gives whether it is still ours. If another one took it since the notes were
        read, it is not: what that one has noted is not overwritten, also if it has left again."""
        data = None if notes is None else msgspec.json.encode(notes)
        held = await self._frontier.hold_duty(
            DUTY, self._holder, seconds=self._duty_seconds, notes=data, term=self._term
        )
        return held.is_ours

    def _watched(self, crawls: Mapping[str, Crawl], notes: Notes) -> dict[str, Crawl]:
        """The crawls to look at: those that are not finished, those that were not at the last look, and those that
        have an alert."""
        unfinished = [one for one in crawls.values() if is_unfinished(one.state) and self._is_watched(one)]
        former = [*notes.watched, *(alert.crawl for alert in notes.alerts.values())]
        wanted = {crawl.id: crawl for crawl in unfinished[:MOST_CRAWLS]}
        return wanted | {name: crawls[name] for name in former if name in crawls}

    async def _findings(self, crawls: Mapping[str, Crawl]) -> list[Finding]:
        found: list[Finding] = []
        for crawl in crawls.values():
            found += findings_of(await self._sight(crawl), self._config.rules)
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
        """Read the sinks. Where the store gives no answer they stay as they were: an alert is not over for that."""
        with contextlib.suppress(ShoalError, OSError):
            sinks = await sinks_of()
            wanted = self._config.spiders
            self._sinks = [sink for sink in sinks if not wanted or sink.place.spider in wanted]

    def _is_watched(self, crawl: Crawl) -> bool:
        return not self._config.spiders or crawl.spider in self._config.spiders

    async def _sight(self, crawl: Crawl) -> Sight:
        rules = self._config.rules
        seconds = rules.longest + HISTORY_SLACK_SECONDS
        points = await self._frontier.points(crawl.id, seconds=seconds)
        crew = await crew_of(crawl.id, frontier=self._frontier)
        progress = await self._frontier.progress(crawl.id)
        times = self._writes.setdefault(crawl.id, WriteTimes())
        now = self._clock()
        mean = times.read([member.beat for member in crew], now=now)
        return Sight(crawl=crawl, progress=progress, now=now, points=points, crew=crew, write_seconds=mean)

    async def _send(self, notes: Notes) -> None:
        """Send what is due, each target's messages in their order."""
        targets = {target.name: target for target in self._config.targets}
        for _ in range(MOST_ROUNDS):
            # Before anything is sent: what is not noted would be lost with this process.
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
        """Tell each target; the duty is kept meanwhile, however long they take."""
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
    """How long writes to a store took lately, from the totals that workers give."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, dict[str, tuple[int, float]]]] = deque()

    def read(self, beats: Iterable[WorkerBeat], *, now: float) -> float | None:
        """Take in one reading; gives the mean of the last minute, None if nothing was written."""
        totals = {beat.worker: (beat.figures.writes, beat.figures.write_seconds) for beat in beats}
        self._readings.append((now, totals))
        while len(self._readings) > 2 and now - self._readings[1][0] >= WRITES_SECONDS:
            self._readings.popleft()
        before = self._readings[0][1]
        writes, seconds = 0, 0.0
        for worker, (count, spent) in totals.items():
            then, spent_then = before.get(worker, (0, 0.0))
            # A worker that began anew counts from zero.
            if count >= then and worker in before:
                writes, seconds = writes + count - then, seconds + spent - spent_then
        return seconds / writes if writes else None


def disks_of(paths: Iterable[str]) -> list[Disk]:
    """The disks that these files and folders lie on, each once."""
    found: dict[int, Disk] = {}
    for path in paths:
        folder = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
        with contextlib.suppress(OSError):
            usage = shutil.disk_usage(folder)
            found.setdefault(os.stat(folder).st_dev, Disk(folder, usage.free, usage.total))
    return list(found.values())


def local_paths(places: Places) -> list[str]:
    """The files and folders of this machine in which a crawl lies."""
    named = [places.frontier, places.store, places.archive or ""]
    return [path for place in named if place and (path := path_of(place)) is not None]
