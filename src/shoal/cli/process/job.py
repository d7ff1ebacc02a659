"""The options of a command that begins or resumes a crawl."""

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
    """A spider to run, and the options of the run.

    reference: how worker processes load the spider. anew: begin a new crawl although the last one is finished.
    skip_stored: a regular expression; matching pages are skipped if the store has their items. skip_known: a new crawl
    skips URLs that an earlier one has done. strict: any dead letter is a failure. again: the command that resumes the
    crawl, without `shoal`. watched: what the supervisor of this process knows, with earlier deaths. scheduled: the run
    of a schedule. kinds: kinds of tasks to do; empty: the spider's. code: the spider's code as loaded. stay: do not
    finish, wait for URLs from outside."""

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
