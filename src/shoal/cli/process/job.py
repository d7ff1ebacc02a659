"""What a command that begins or resumes a crawl was asked to do."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.crawl.code import NO_CODE, SpiderCode
from shoal.crawl.opening import Places
from shoal.duties.alerts.config import AlertConfig
from shoal.settings.table import Settings
from shoal.spider.spider import Spider
from shoal.worker.deaths import Watched


@dataclass(frozen=True, kw_only=True)
class Job:
    """A spider to run, and how. `reference` is how worker processes load the spider.

    `anew`: begin a new crawl though the last one is finished. `skip_stored`: an expression for pages that are not
    fetched if the store has their items. `skip_known`: a new crawl takes no URL that an earlier one has done. `strict`:
    any dead letter is a failure. `again` is the command that resumes the crawl, without `shoal`. `dashboard`: with a
    page to watch it. `watched`: a guardian watches this process, and may have watched others before it. `scheduled`:
    the run of a schedule that this is. `kinds` of tasks that it does; empty: the spider's. `code`: the spider's, as it
    was loaded. `stay`: do not finish, wait for what comes from outside."""

    spider: Spider
    reference: str
    settings: Settings
    places: Places
    workers: int = 1
    output: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    fresh: bool = False
    anew: bool = False
    skip_stored: str = ""
    skip_known: bool = False
    yes: bool = False
    as_json: bool = False
    strict: bool = False
    again: str = ""
    watched: Watched | None = None
    alerts: AlertConfig | None = None
    dashboard: bool = False
    scheduled: str = ""
    kinds: tuple[str, ...] = ()
    code: SpiderCode = NO_CODE
    stay: bool = False
