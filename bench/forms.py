"""What each way to write a spider costs per page: `python -m bench.forms`.

Every form makes the same item of each page and asks for the same links. The pages come from memory, and nothing is
stored: what is left is the journey of a page in a worker, with its parser, the handler, the rules of its host's
robots.txt and the search for links that are not known yet. One process, the CPU time of the best round.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.site import SitePlan, page_html
from shoal import Item, Page, Request, Spider
from shoal.fetch.base import Fetch, Response
from shoal.journey.handlers import Handlers
from shoal.journey.intake import Intake
from shoal.journey.journey import Journey
from shoal.journey.recent_keys import RecentKeys
from shoal.journey.robots import LaneRules
from shoal.model import Crawl, Done, LaneUpdate, Lease, Task
from shoal.settings.table import Settings
from shoal.testing.fakes import passages_for, task_for
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.urls.canonical import UrlRules, lane_of

SITE = "http://127.0.0.1:8000"
ROBOTS = b"user-agent:*\ndisallow:/admin/\ndisallow:/cart\ndisallow:/*?sort=\nallow:/cart/help\ndisallow:/search\n"
LINKS = "a[href]"
WITHOUT_LINKS = "no links at all"


class Forms(Spider):
    """A handler for each form."""

    def no_links(self, page: Page) -> Iterator[Any]:
        yield item_of(page)

    def yielded(self, page: Page) -> Iterator[Any]:
        yield item_of(page)
        yield page.follow(LINKS, self.yielded)

    def yielded_from(self, page: Page) -> Iterator[Any]:
        yield item_of(page)
        yield from page.follow(LINKS, self.yielded_from)

    def nested(self, page: Page) -> Iterator[Any]:
        yield item_of(page)
        yield from self._followed(page)

    def _followed(self, page: Page) -> Iterator[Request]:
        yield from page.follow(LINKS, self.nested)

    def looped(self, page: Page) -> Iterator[Any]:
        yield item_of(page)
        for request in page.follow(LINKS, self.looped):  # noqa: UP028 -- this form is what is measured
            yield request

    async def streamed(self, page: Page) -> AsyncIterator[Any]:
        yield item_of(page)
        for request in page.follow(LINKS, self.streamed):
            yield request

    async def streamed_whole(self, page: Page) -> AsyncIterator[Any]:
        yield item_of(page)
        yield page.follow(LINKS, self.streamed_whole)

    def links(self, page: Page) -> Iterator[Any]:
        yield item_of(page)
        for url in page.links():
            yield Request(url, "links")

    def links_to_method(self, page: Page) -> Iterator[Any]:
        yield item_of(page)
        for url in page.links():
            yield Request(url, self.links_to_method)

    def rich(self, page: Page) -> Iterator[Any]:
        yield item_of(page)
        for rank, url in enumerate(page.links()):
            handler = self.rich if rank % 2 else self.rich_too
            yield Request(url, handler, priority=rank % 3, meta={"rank": rank, "from": page.url})

    def rich_too(self, page: Page) -> Iterator[Any]:
        yield from self.rich(page)


# What the table calls each form, and its handler.
FORMS = {
    WITHOUT_LINKS: "no_links",
    "yield page.follow(…)": "yielded",
    "yield from page.follow(…)": "yielded_from",
    "the same in a generator of one's own": "nested",
    "for request in page.follow(…)": "looped",
    "for request in page.follow(…), async": "streamed",
    "yield page.follow(…), async": "streamed_whole",
    "Request(url) for page.links()": "links",
    "Request(url, self.parse)": "links_to_method",
    "two handlers, priority, meta": "rich",
}


class Cost(NamedTuple):
    """What one form costs, in µs of CPU."""

    form: str
    per_page: float
    per_link: float
    ratio: float


def item_of(page: Page) -> Item:
    return Item(url=page.url, title=page.text("title"))


class Memory:
    """A fetcher whose answers are all there."""

    def __init__(self, pages: dict[str, bytes]) -> None:
        headers = {"content-type": "text/html"}
        self._answers = {
            url: Response(url=url, status=200, headers=headers, body=body, wire_size=len(body), elapsed=0.01)
            for url, body in pages.items()
        }

    async def fetch(self, request: Fetch) -> Response:
        return self._answers[request.url]

    async def close(self) -> None:
        """Nothing is open."""


def main() -> None:
    options = _options()
    plan = SitePlan(pages=options.pages, base=SITE)
    site = {f"{SITE}/{plan.path(number)}": page_html(plan, number).encode() for number in range(plan.pages)}
    forms = {form: name for form, name in FORMS.items() if not options.only or name in options.only}
    best: dict[str, float] = {}
    for _ in range(options.rounds):
        for form, name in forms.items():
            spent = asyncio.run(crawl(site, handler=name))
            best[form] = min(spent, best.get(form, spent))
    costs = compare(best, links=plan.links)
    show(costs, plan=plan)
    if options.json:
        options.json.write_text(json.dumps([cost._asdict() for cost in costs], indent=2) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.forms", description="what each way to write a spider costs")
    parser.add_argument("--pages", type=int, default=2000, help="pages of the site")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each form, interleaved")
    parser.add_argument("--only", nargs="*", choices=list(FORMS.values()), help="these forms alone")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


async def crawl(site: dict[str, bytes], *, handler: str) -> float:
    """Take a worker through every page of the site; gives the µs of CPU per page."""
    settings = Settings(allow_private=True)
    frontier = MemoryFrontier(clock=time.time)
    await frontier.open_crawl(Crawl(id="c", spider="forms", needs_rules=True))
    lane = lane_of(next(iter(site)))
    await frontier.update_lane("c", lane, LaneUpdate(rules=ROBOTS, rules_seconds=3600.0))
    known = RecentKeys()
    intake = Intake(UrlRules(settings, start_hosts=[lane]), settings, known=known)
    handlers = Handlers(Forms(), intake=intake, item_key="", seconds=settings.handler_seconds)
    journey = Journey(
        spider_name="forms",
        worker="w",
        settings=settings,
        needs_rules=True,
        handlers=handlers,
        intake=intake,
        lane_rules=LaneRules(frontier=frontier, settings=settings),
        passages=passages_for(Memory(site), settings=settings),
    )
    tasks = [task_for(url, handler=handler, depth=1, parent=1) for url in site]
    known.add(tasks[0].key)
    gc.collect()
    started = time.process_time()
    seen = 1
    for task in tasks:
        seen += await take(task, journey, known)
    spent = time.process_time() - started
    handlers.close()
    if seen != len(site) and FORMS[WITHOUT_LINKS] != handler:
        raise SystemExit(f"{handler} has found {seen:,} of {len(site):,} pages")
    return spent / len(site) * 1e6


async def take(task: Task, journey: Journey, known: RecentKeys) -> int:
    """One page; what it found is known afterwards, as when a frontier has confirmed it. Gives the number of that."""
    finished = await journey.take(Lease(crawl="c", task=task, token=7, rules_version=1))
    result = finished.result
    if not isinstance(result, Done) or result.outcome != "ok" or len(finished.items) != 1:
        raise SystemExit(f"{task.url} ended as {result}")
    for found in result.found:
        known.add(found.key)
    return len(result.found)


def compare(best: dict[str, float], *, links: int) -> list[Cost]:
    """The forms beside the cheapest that follows links; a link costs what a page costs more than one without links."""
    bare = best.get(WITHOUT_LINKS, 0.0)
    cheapest = min((spent for form, spent in best.items() if form != WITHOUT_LINKS), default=bare)
    return [Cost(form, spent, (spent - bare) / links, spent / cheapest) for form, spent in best.items()]


def show(costs: list[Cost], *, plan: SitePlan) -> None:
    print(f"{plan.pages:,} pages of {plan.page_bytes // 1024} kB with {plan.links} links, without network and store")
    print(f"{'':40}{'µs per page':>12}{'per link':>10}{'ratio':>8}")
    for cost in costs:
        print(f"{cost.form:40}{cost.per_page:12.1f}{cost.per_link:10.2f}{cost.ratio:8.2f}")


if __name__ == "__main__":
    main()
