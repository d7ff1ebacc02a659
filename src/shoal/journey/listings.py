"""Pages that list other pages: tasks out of sitemaps, and out of ranges of numbered pages."""

from __future__ import annotations

import asyncio
import re
from functools import partial

from shoal.journey.intake import Found, Intake
from shoal.journey.sitemaps import Sitemap, modified_at, parse_sitemap, sitemaps_in_robots
from shoal.model import Visit
from shoal.settings.values import written_revisit
from shoal.spider.page import Page
from shoal.spider.spider import Request
from shoal.urls.canonical import lane_of

# The handlers of such pages, as tasks name them.
SITEMAP = "@sitemap"
PAGES = "@pages"

MOST_PAGES = 1_000_000
FEWEST_COMPARED = 20  # pages of a sitemap whose times of change are compared
MOST_LEVELS = 3  # robots.txt, an index, an index in it, their sitemaps
MOST_ELSEWHERE = 1_000  # sitemaps on other hosts that one file may name, whatever the scope


async def take_sitemap(page: Page, found: Found, *, intake: Intake) -> str:
    """Take in the pages and the further sitemaps that a sitemap, a feed or a robots.txt names.

    Gives the problem of the file, in a line; empty if it has none."""
    handler, task = page.meta["handler"], page.task
    request_for = partial(
        Request,
        handler=handler,
        depth=task.depth,
        priority=task.priority,
        pool=page.meta.get("pool"),
        meta=page.meta.get("meta"),
    )
    if page.url.endswith("/robots.txt"):
        sitemap = _of_robots(page.content[: intake.settings.max_robots_bytes], page.url)
    else:
        sitemap = await asyncio.to_thread(parse_sitemap, page.body, url=page.url)
    if not sitemap.is_whole:
        found.reject("bad_sitemap", page.url)
    if sitemap.skipped:
        found.reject("sitemap_entry", page.url)
        found.rejected["sitemap_entry"] += sitemap.skipped - 1
    await _take_nested(sitemap.sitemaps, page, found, intake=intake)
    changed = _changed(sitemap, task.visit, now=intake.clock())
    for number, url in enumerate(sitemap.pages):
        if number % 1000 == 0:
            await asyncio.sleep(0)
        intake.request(request_for(url), found, parent=task, base=page.url, hastens=url in changed)
    return sitemap.problem


def _changed(sitemap: Sitemap, visit: Visit | None, *, now: float) -> set[str]:
    """The pages that changed since the last visit of this sitemap, as it says.

    One that says the same of all its pages tells when it was made itself. A time to come is the time of a change once
    it is over: so a page is told of once for each."""
    if visit is None or not visit.visits:
        return set()
    if len(sitemap.modified) >= FEWEST_COMPARED and len(set(sitemap.modified.values())) == 1:
        return set()
    return {
        url for url, text in sitemap.modified.items() if any(visit.at < moment <= now for moment in modified_at(text))
    }


def _of_robots(text: str, url: str) -> Sitemap:
    sitemaps = sitemaps_in_robots(text)
    problem = "" if sitemaps else f"sitemap {url}: it names no sitemap"
    return Sitemap(sitemaps=sitemaps, problem=problem, is_whole=bool(sitemaps))


async def _take_nested(urls: list[str], page: Page, found: Found, *, intake: Intake) -> None:
    """Take in sitemaps that a sitemap or a robots.txt names.

    The file that a spider starts from may name sitemaps on any host. The sitemaps it leads to may name only further
    ones on their own host or in scope, and MOST_LEVELS ends a chain of them."""
    task, level = page.task, page.meta.get("level", 0) + 1
    meta = {**page.meta, "level": level}
    revisit = None if task.visit is None else written_revisit(task.visit.asked)
    elsewhere = 0
    for number, url in enumerate(urls):
        if number % 1000 == 0:
            await asyncio.sleep(0)
        link = intake.rules.resolve(url, page.url)
        if level > MOST_LEVELS:
            found.reject("sitemap_chain", link.url)
            continue
        is_elsewhere = link.lane != lane_of(page.url)
        elsewhere += is_elsewhere
        scoped = is_elsewhere and (level > 1 or elsewhere > MOST_ELSEWHERE)
        request = Request(
            url,
            handler=SITEMAP,
            meta=meta,
            depth=task.depth,
            priority=task.priority,
            pool=meta.get("pool"),
            render=False,
            revisit=revisit,
        )
        intake.request(request, found, parent=task, base=page.url, scoped=scoped)


async def take_page_range(page: Page, found: Found, *, intake: Intake) -> None:
    """Take in the numbered pages after the first, which is `page`."""
    options, task = page.meta, page.task
    last = last_page(page, options["last"], options["template"])
    # The frontier takes no more of one shape; and a page may claim any number.
    most = options["first"] + (intake.settings.max_per_shape or MOST_PAGES)
    if last > most:
        found.reject("max_per_shape", options["template"].replace("{}", str(last)[:20]))
    for number in range(options["first"] + 1, min(last, most) + 1):
        if number % 1000 == 0:
            await asyncio.sleep(0)
        request = Request(
            options["template"].replace("{}", str(number)),
            handler=options["handler"],
            meta=options["meta"] or None,
            depth=task.depth,
            priority=task.priority,
            pool=options.get("pool"),
        )
        intake.request(request, found, parent=task, base=page.url)


def last_page(page: Page, last: int | str, template: str) -> int:
    """The number of the last page: as given, or read from an element's link, value or text."""
    if isinstance(last, int):
        return last
    elements = page.css(last)
    if not elements:
        raise LookupError(f"no element matches {last!r}, so the last page is not known")
    element = elements[-1]
    pattern = re.escape(template.rpartition("/")[2]).replace(re.escape("{}"), r"(\d+)")
    linked = re.search(pattern, element.attr("href"))
    if linked:
        return int(linked[1])
    numbers = re.findall(r"\d+", element.attr("value") or element.text())
    if not numbers:
        raise LookupError(f"the element {last!r} names no number, so the last page is not known")
    return int(numbers[-1])
