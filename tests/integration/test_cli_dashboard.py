"""`--dashboard`: a page beside a crawl, which ends with it."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from typing import Any

import psutil
from command_line import Folder, Started

from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import wait_until

PRODUCTS = 40


def told_url(running: Started) -> str:
    assert running.stderr is not None
    for line in running.stderr:
        if found := re.search(r"the dashboard is at (http://127\.0\.0\.1:\d+/)", line):
            return found[1]
    raise AssertionError("no line names the dashboard")


def crawls(url: str) -> Any:
    try:
        with urllib.request.urlopen(f"{url}api/v1/crawls", timeout=60) as answer:
            return json.load(answer)["crawls"]
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 503:  # on a busy machine the frontier may answer too late
            raise
        return []


def server_of(url: str) -> psutil.Process:
    """The process that listens there."""
    port = int(url.rstrip("/").rpartition(":")[2])
    (pid,) = {one.pid for one in psutil.net_connections("tcp") if one.status == "LISTEN" and one.laddr.port == port}
    return psutil.Process(pid)


def test_a_crawl_is_seen_while_it_runs(folder: Folder, site: SiteProcess) -> None:
    with folder.start("run", folder.spider(site.url, rate="2/s"), "--dashboard") as running:
        url = told_url(running)
        server = server_of(url)
        (crawl,) = wait_until(lambda: crawls(url), otherwise="the crawl is not seen", pause=0.1)
        assert (crawl["id"], crawl["state"]) == ("books-1", "running")
        folder.hurry(site.url)
        assert running.wait(120) == 0
    assert not server.is_running()


def test_the_dashboard_ends_when_its_crawl_is_killed(folder: Folder, site: SiteProcess) -> None:
    with folder.start("run", folder.spider(site.url, rate="2/s"), "--workers", "2", "--dashboard") as running:
        server = server_of(told_url(running))
        running.send_signal(signal.SIGKILL)
        running.wait(60)
        wait_until(lambda: not server.is_running(), otherwise="the dashboard goes on", pause=0.1)
