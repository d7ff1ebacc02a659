"""Whether a worker process has the code of the spider that its crawls work with."""

from __future__ import annotations

from shoal.cli.display.lines import Say
from shoal.cli.next_commands import command, quote
from shoal.crawl.code import SpiderCode, code_of, differences
from shoal.crawl.opening import Places
from shoal.crawl.record import code_known
from shoal.errors import UsageError
from shoal.model import Crawl


class WorkerCode:
    """The code that a worker process has loaded. Every difference to that of a crawl is said once.

    `is_told`: people said that other code is meant. A worker of a fleet is told as well: its coordinator set the
    crawl's code, and a file that changes meanwhile is to stop no crawl."""

    def __init__(self, reference: str, *, places: Places, is_told: bool, say: Say) -> None:
        self.loaded = code_of(reference)
        self._reference = reference
        self._places = places
        self._is_told = is_told
        self._say = say
        self._said: dict[str, str] = {}

    def admits(self, crawl: Crawl, *, is_alone: bool) -> bool:
        """Whether the process may begin to work on a crawl. One that is to work on nothing else (`is_alone`) is
        refused, where other crawls would not suffer from it."""
        begun = code_known(crawl)
        names = differences(begun, self.loaded)
        if not names:
            return True
        if self._is_told:
            self._say_once(crawl, begun, f"{_differs(crawl, names)}; this worker works with its own")
            return True
        refusal = f"{_differs(crawl, names)}; {self._cure(begun)}"
        if is_alone and self._said.get(crawl.id) != begun.digest:
            raise UsageError(refusal)
        self._say_once(crawl, begun, f"{refusal}; this worker leaves it alone")
        return False

    def notice(self, crawl: Crawl) -> None:
        """Say so if a crawl that the process works on has other code by now."""
        begun = code_known(crawl)
        if names := differences(begun, self.loaded):
            line = f"{_differs(crawl, names)}; this worker goes on with what it has loaded: a new start loads it anew"
            self._say_once(crawl, begun, line)

    def _cure(self, begun: SpiderCode) -> str:
        if code_of(self._reference).digest == begun.digest:
            return "they have changed since this worker loaded them: start it again"
        run = command(f"run {quote(self._reference)}", self._places)
        return (
            f"bring this machine's files up to date, or, if they are the newer ones, `{run}` gives them to the crawl;"
            " --other-code works with both"
        )

    def _say_once(self, crawl: Crawl, begun: SpiderCode, line: str) -> None:
        if self._said.get(crawl.id) != begun.digest:
            self._said[crawl.id] = begun.digest
            self._say(line)


def _differs(crawl: Crawl, names: str) -> str:
    return f"{crawl.id} runs other code of its spider than this process: {names}"
