"""Checks of a worker process before it works on a crawl: its spider's code; the inboxes of its spiders."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from shoal.backends import is_pipe
from shoal.cli.display.inboxes import fed_line
from shoal.cli.display.lines import Say
from shoal.cli.display.next_commands import command, quote
from shoal.crawl.beginning import begin, crawls_of, unfinished_crawl
from shoal.crawl.code import SpiderCode, code_of, differences
from shoal.crawl.feeder import Stayer, staying
from shoal.crawl.inbox import Listener
from shoal.crawl.inbox_readers import ReaderNotes
from shoal.crawl.joining import places_of_new
from shoal.crawl.opening import Places, SharedResults, waiting_for
from shoal.crawl.record import code_known, is_unfinished
from shoal.crawl.sources import has_start
from shoal.errors import ServerUnreachable, StorageError, UsageError
from shoal.frontier.base import Frontier
from shoal.model import Crawl
from shoal.run.intakes import settings_of
from shoal.spider.loading import made
from shoal.spider.spider import Spider
from shoal.text.secrets import masked

if TYPE_CHECKING:
    from shoal.cli.process.worker_process import WorkerJob


class WorkerCode:
    """The spider code that a worker process has loaded. Each difference to a crawl's code is said once.

    accepts_other: work with different code (--other-code, and workers of a fleet: a file that changes meanwhile must
    not stop a crawl)."""

    def __init__(self, reference: str, *, places: Places, accepts_other: bool, say: Say) -> None:
        self.loaded = code_of(reference)
        self._reference = reference
        self._places = places
        self._accepts_other = accepts_other
        self._say = say
        self._said: dict[str, str] = {}

    def admits(self, crawl: Crawl, *, is_alone: bool) -> bool:
        """Whether the process may work on a crawl. is_alone: it works on no other crawl, so refuse with an error."""
        begun = code_known(crawl)
        names = differences(begun, self.loaded)
        if not names:
            return True
        if self._accepts_other:
            self._say_once(crawl, begun, f"{_differs(crawl, names)}; this worker works with its own")
            return True
        refusal = f"{_differs(crawl, names)}; {self._advice(begun)}"
        if is_alone and self._said.get(crawl.id) != begun.digest:
            raise UsageError(refusal)
        self._say_once(crawl, begun, f"{refusal}; this worker leaves it alone")
        return False

    def notice(self, crawl: Crawl) -> None:
        """Say so if the code of a running crawl has changed."""
        begun = code_known(crawl)
        if names := differences(begun, self.loaded):
            line = (
                f"{_differs(crawl, names)}; this worker continues with its loaded code: restart it to load the new code"
            )
            self._say_once(crawl, begun, line)

    def _advice(self, begun: SpiderCode) -> str:
        if code_of(self._reference).digest == begun.digest:
            return "they have changed since this worker loaded them: restart it"
        run = command(f"run {quote(self._reference)}", self._places)
        return (
            f"update the files of this machine, or, if they are newer, `{run}` gives them to the crawl;"
            " --other-code accepts both"
        )

    def _say_once(self, crawl: Crawl, begun: SpiderCode, line: str) -> None:
        if self._said.get(crawl.id) != begun.digest:
            self._said[crawl.id] = begun.digest
            self._say(line)


def _differs(crawl: Crawl, names: str) -> str:
    return f"{crawl.id} runs other code of its spider than this process: {names}"


REFUSED_SECONDS: Final = 30.0  # pause after a crawl could not begin: another process may begin it


class WorkerInboxes:
    """The inboxes of a worker process's spiders: begins crawls for pushed URLs, and keeps crawls open.

    Off with --burst and behind a pipe."""

    def __init__(
        self,
        job: WorkerJob,
        *,
        spiders: Mapping[str, type[Spider]],
        code: SpiderCode,
        frontier: Frontier,
        results: SharedResults,
        say: Callable[[str], None],
    ) -> None:
        self._job = job
        self._spiders = spiders
        self._code = code
        self._frontier = frontier
        self._results = results
        self._say = say
        self._stays = not job.burst and not is_pipe(job.places.frontier)
        self._stayer = Stayer(frontier, say=say)
        self._notes = ReaderNotes(frontier)
        self._refused_until: dict[str, float] = {}

    async def begin(self, crawls: Sequence[Crawl], listener: Listener) -> int:
        """Begin a crawl for each spider with pushed URLs and no unfinished crawl; returns how many. A crawl of another
        file with the same spider name owns the entries."""
        if not self._stays or self._job.crawl_id is not None:
            return 0
        # `shoal status` then knows which inbox names are read.
        with contextlib.suppress(ServerUnreachable, StorageError):
            await self._notes.renew({name: self._job.places.inboxes.get(name, "") for name in self._spiders})
        busy = {crawl.spider for crawl in crawls if is_unfinished(crawl.state)}
        now = time.monotonic()
        idle = [name for name in self._spiders if name not in busy and now >= self._refused_until.get(name, now)]
        begun = 0
        for name in await listener.spiders_waiting(idle):
            try:
                begun += await listener.begin_for(name, partial(self._begin, name)) is not None
            except UsageError as error:
                # Other crawls continue.
                self._refused_until[name] = now + REFUSED_SECONDS
                self._say(f"URLs pushed for {name} wait in its inbox, no crawl can begin: {error}")
        return begun

    async def keep_open(self, crawls: Iterable[Crawl]) -> None:
        """Keep the crawls with --stay among these open, and no others."""
        if self._stays:
            await self._stayer.hold(staying(crawls))

    async def keep_open_also(self, crawl: Crawl) -> None:
        """Keep one more crawl open, if it has --stay."""
        if self._stays and staying([crawl]):
            await self._stayer.hold_also(crawl.id)

    async def leave(self) -> None:
        """Stop keeping crawls open."""
        await self._stayer.leave()

    def or_for_urls(self) -> str:
        """The part of a message that says how to push URLs to spiders without a start."""
        fed = [name for name, kind in self._spiders.items() if not has_start(kind)]
        if not fed or not self._stays or self._job.crawl_id is not None:
            return ""
        return f", or for URLs: {', '.join(fed_line(name, self._job.places) for name in fed)}"

    async def _begin(self, name: str) -> Crawl:
        """Begin a crawl with --stay for this spider, unless another process has begun one."""
        kind, places = self._spiders[name], places_of_new(self._job.places)
        spider, settings = made(kind), settings_of(kind, {}).values
        reference = self._job.reference
        if len(self._spiders) > 1:
            reference = f"{reference}:{kind.__name__}"
        crawls = await crawls_of(spider, frontier=self._frontier)
        if (running := unfinished_crawl(crawls, reference=reference, places=places)) is not None:
            return running
        store = await self._results.store(places.store, wait=waiting_for(places.store, self._say))
        # `anew`: only people resume a stopped crawl.
        crawl, _ = await begin(
            self._frontier,
            spider,
            settings=settings,
            reference=reference,
            places=places,
            store=store,
            code=self._code,
            stays=True,
            anew=True,
        )
        self._say(f"beginning {crawl.id} in {masked(places.frontier)}: URLs were pushed for {name}")
        return crawl
