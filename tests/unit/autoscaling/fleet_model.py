"""Deployments of workers, the nodes below them, Prometheus and an autoscaler, around crawls of the model.

What is scaled on is computed by shoal itself: its `Surveyor` reads the model as if it were a frontier."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, cast

from autoscaler_rules import HpaMemory, chart_numbers, hpa, hpa_of_chart, keda, keda_of_chart
from crawl_model import BATCH, SLOTS, ModelCrawl

from shoal.crawl.inbox import NoInbox
from shoal.frontier.base import Frontier
from shoal.model import HTTP, Crawl, CrawlState, ExitStatus, Figures, Heartbeat, LaneStatus, Progress
from shoal.serve.board import Surveyor

STARTS_IN: Final = (20.0, 60.0)
NOISE_SECONDS: Final = 10
EPOCH: Final = 1_700_000_000.0
BEAT_KEPT: Final = 200


@dataclass(kw_only=True)
class Pod:
    """A worker: it is there from `ready` on, and takes no more pages from `stops` on."""

    name: str
    kinds: tuple[str, ...]
    ready: float
    stops: float | None = None
    gone: float | None = None
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    load: float = 0.0

    def is_at_work(self, now: float) -> bool:
        return self.ready <= now and self.stops is None and self.gone is None

    def counted(self, crawl: str) -> dict[str, float]:
        """What it has counted for a crawl."""
        if crawl not in self.figures:
            self.figures[crawl] = dict.fromkeys((*_COUNTED, "pages"), 0.0)
        return self.figures[crawl]


_COUNTED: Final = (
    "fetches", "fetch_seconds", "cpu_seconds", "waiting_for_slots", "writes", "write_seconds", "settles",
)  # fmt: skip


@dataclass(kw_only=True)
class Deployment:
    """Pods of one kind of worker that work on all crawls of the model, or on one, and what scales them."""

    kinds: tuple[str, ...] = (HTTP,)
    crawl: str = ""
    scaler: Literal["hpa", "keda", "none"] = "keda"
    replicas: int = 0
    pods: list[Pod] = field(default_factory=list)
    memory: HpaMemory = field(default_factory=HpaMemory)
    active: float = 0.0

    def works_on(self, crawl: str) -> bool:
        return self.crawl in ("", crawl)


class Moment(NamedTuple):
    """What was seen at one poll: the metric, the replicas that were asked for, the workers at work, pages left."""

    at: float
    metric: float | None
    replicas: int
    workers: int
    left: int


class Fleet:
    """All of it. `seen` is what happened, by the number of the deployment."""

    def __init__(
        self,
        crawls: Sequence[ModelCrawl],
        deployments: Sequence[Deployment],
        *,
        noise: float = 0.0,
        seed: int = 7,
        look_seconds: float = 15.0,
        numbers: dict[str, Any] | None = None,
    ) -> None:
        self.crawls, self.deployments = list(crawls), list(deployments)
        self.now = 0.0
        self.seen: list[list[Moment]] = [[] for _ in deployments]
        self.without_prometheus: tuple[float, float] = (0.0, 0.0)
        self._random = random.Random(seed)
        self._noise = noise
        self._look_seconds = look_seconds
        numbers = chart_numbers() if numbers is None else numbers
        self._keda, self._hpa = keda_of_chart(numbers), hpa_of_chart(numbers)
        self.most = self._hpa.most
        self.surveyor = Surveyor(clock=lambda: self.now)
        self._view = cast("Frontier", ModelView(self))
        self._inbox = ModelInbox(self)
        self._made = 0
        self._credit: dict[tuple[str, int, str], float] = {}

    async def run(self, seconds: float) -> None:
        """Let so much time pass."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self._pass_second()
            if self.now % self._look_seconds == 0:
                await self.surveyor.look(self._view, self._inbox)
            if self.now % self._keda.poll == 0:
                await self.surveyor.look(self._view, self._inbox)
                self._scale()

    def vanish(self, deployment: int, number: int) -> None:
        """So many pods are gone with their nodes; others are started in their place."""
        one = self.deployments[deployment]
        alive = [pod for pod in one.pods if pod.is_at_work(self.now)]
        for pod in self._random.sample(alive, min(number, len(alive))):
            pod.gone = self.now
        for crawl in self.crawls:
            if alive and one.works_on(crawl.id):
                crawl.lose(self.now, min(number, len(alive)) / len(alive))
        self._keep_replicas(one)

    def metric(self, one: Deployment) -> float | None:
        """What Prometheus answers for this deployment; None: nothing, as there is no series or no Prometheus."""
        begins, ends = self.without_prometheus
        if begins <= self.now < ends:
            return None
        found = [
            kind.workers_wanted
            for crawl, advice in self.surveyor.advice.items()
            if one.works_on(crawl)
            for kind in advice.kinds
            if kind.kind in one.kinds
        ]
        return float(sum(found)) if found else None

    def beats(self, crawl: ModelCrawl) -> list[Heartbeat]:
        """The latest heartbeats of the crawl's workers."""
        found = []
        for one in self.deployments:
            pods = [pod for pod in one.pods if pod.ready <= self.now and one.works_on(crawl.id)]
            count = sum(pod.is_at_work(self.now) for pod in pods)
            busy = sum(crawl.in_hand(kind) for kind in one.kinds) / max(1, count)
            found += [self._beat(crawl, pod, busy=round(busy)) for pod in pods[-BEAT_KEPT:]]
        return found

    def _beat(self, crawl: ModelCrawl, pod: Pod, *, busy: int) -> Heartbeat:
        counted = pod.counted(crawl.id)
        seen = self.now if pod.gone is None else pod.gone
        return Heartbeat(
            worker=f"{pod.name}:{crawl.id}" if len(self.crawls) > 1 else pod.name, crawl=crawl.id, host=pod.name,
            pid=1, version="0", slots=SLOTS, busy=busy, pages=int(counted["pages"]), started=EPOCH + pod.ready,
            seen=EPOCH + seen, machine=pod.name, load=pod.load, cores=4, kinds=pod.kinds,
            left=EPOCH + pod.stops if pod.stops is not None else 0.0,
            figures=Figures(**{
                name: int(value) if name in ("fetches", "writes", "settles") else value
                for name, value in counted.items() if name != "pages"
            }),
        )  # fmt: skip

    def _pass_second(self) -> None:
        if self._noise and self.now % NOISE_SECONDS == 0:
            for crawl in self.crawls:
                crawl.noise = 1 + self._random.uniform(-self._noise, self._noise)
        for crawl in self.crawls:
            crawl.pass_second(self.now)
            for host in crawl.hosts:
                host.grow(self.now, latency=crawl.seconds_per_page())
        # Who asks a host first gets its next start: no deployment is always the first.
        numbers = list(range(len(self.deployments)))
        for number in numbers[:: 1 if self.now % 2 else -1]:
            self._work(number, self.deployments[number])

    def _work(self, number: int, one: Deployment) -> None:
        """The workers of one deployment do what they can in a second; crawls share their cores."""
        pods = [pod for pod in one.pods if pod.is_at_work(self.now)]
        for pod in pods:
            pod.load = 0.02
        mine = [crawl for crawl in self.crawls if one.works_on(crawl.id)]
        if not pods or not mine:
            return
        first = int(self.now) % len(mine)
        cores = float(len(pods))
        for crawl in (*mine[first:], *mine[:first]):
            crawl.serve_leases(self.now)
            if crawl.state is not CrawlState.RUNNING:
                continue
            for kind in one.kinds:
                if kind in crawl.cpu:
                    cores -= self._work_on(crawl, kind, pods, cores=cores, key=(crawl.id, number, kind))

    def _work_on(
        self, crawl: ModelCrawl, kind: str, pods: list[Pod], *, cores: float, key: tuple[str, int, str]
    ) -> float:
        """Pages of one kind; gives the seconds of CPU that they took."""
        count, cost, latency = len(pods), crawl.cpu_per_page(kind), crawl.seconds_per_page()
        writing = crawl.writing
        limits = {"cpu": cores / cost, "slots": count * SLOTS / latency, "store": writing.most}
        limits["writers"] = count * BATCH / writing.batch_seconds if writing.url else writing.most
        rate = min(limits.values())
        credit = min(self._credit.get(key, 0.0) + rate, max(1.0, rate * 1.5))
        begun = crawl.begin(self.now, kind, int(credit))
        self._credit[key] = credit - begun
        is_full = begun >= int(credit) > 0
        batch_seconds = writing.batch_seconds
        if is_full and rate == writing.most:
            batch_seconds = max(batch_seconds, count * BATCH / writing.most)
        part = begun / count
        more = {
            "pages": part, "fetches": part, "fetch_seconds": part * latency, "cpu_seconds": part * cost,
            "waiting_for_slots": 1.0 if is_full and rate == limits["slots"] else 0.0, "writes": part / BATCH,
            "write_seconds": part / BATCH * batch_seconds, "settles": part / BATCH,
        }  # fmt: skip
        for pod in pods:
            pod.load = min(1.0, pod.load + part * cost)
            counted = pod.counted(crawl.id)
            for name, value in more.items():
                counted[name] += value
        return begun * cost

    def _scale(self) -> None:
        for number, one in enumerate(self.deployments):
            metric = self.metric(one)
            if one.scaler == "keda":
                inner, one.memory = hpa(self._keda.hpa, one.memory, now=self.now, replicas=one.replicas, metric=metric)
                one.replicas, one.active = keda(
                    self._keda, now=self.now, replicas=inner, metric=metric, active=one.active
                )
            elif one.scaler == "hpa":
                one.replicas, one.memory = hpa(
                    self._hpa, one.memory, now=self.now, replicas=one.replicas, metric=metric
                )
            self._keep_replicas(one)
            at_work = sum(pod.is_at_work(self.now) for pod in one.pods)
            left = sum(crawl.left for crawl in self.crawls if one.works_on(crawl.id))
            self.seen[number].append(Moment(self.now, metric, one.replicas, at_work, left))

    def _keep_replicas(self, one: Deployment) -> None:
        """As many pods as replicas: new ones need their time to start, those that are stopped finish their pages."""
        alive = [pod for pod in one.pods if pod.stops is None and pod.gone is None]
        for _ in range(one.replicas - len(alive)):
            self._made += 1
            ready = self.now + round(self._random.uniform(*STARTS_IN))
            one.pods.append(Pod(name=f"pod-{self._made}", kinds=one.kinds, ready=ready))
        # Those that are not ready yet go first, then the newest.
        alive.sort(key=lambda pod: -pod.ready)
        for pod in alive[: max(0, len(alive) - one.replicas)]:
            pod.stops = self.now
        one.pods = [pod for pod in one.pods if pod.stops is None or pod.ready <= pod.stops]


class ModelView:
    """The model as a frontier shows it to those who only look."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def crawls(self) -> list[Crawl]:
        return [crawl.record() for crawl in self._fleet.crawls]

    async def progress(self, crawl: str) -> Progress:
        return self._crawl(crawl).progress(self._fleet.now)

    async def lanes(self, crawl: str, *, limit: int) -> list[LaneStatus]:
        found = sorted(self._crawl(crawl).lanes(self._fleet.now), key=lambda lane: -lane.waiting)
        return found[:limit]

    async def workers_of(self, crawl: str) -> list[Heartbeat]:
        return self._fleet.beats(self._crawl(crawl))[-BEAT_KEPT:]

    async def workers(self, *, within: float) -> list[Heartbeat]:
        beats = [beat for crawl in self._fleet.crawls for beat in self._fleet.beats(crawl)]
        return [beat for beat in beats if not beat.left and EPOCH + self._fleet.now - beat.seen <= within]

    async def exits(self, crawl: str, *, limit: int) -> list[ExitStatus]:
        return []

    def _crawl(self, name: str) -> ModelCrawl:
        return next(crawl for crawl in self._fleet.crawls if crawl.id == name)


class ModelInbox(NoInbox):
    """The inboxes of the model: how many URLs wait in them."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def count(self, crawls: Sequence[str]) -> dict[str, int]:
        return {crawl.id: crawl.pushed for crawl in self._fleet.crawls if crawl.pushed and crawl.id in crawls}
