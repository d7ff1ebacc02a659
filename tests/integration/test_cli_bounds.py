"""What a running crawl says it is bound by: a pace, the CPU, proxies that are down."""

from __future__ import annotations

import pytest
from command_line import SECONDS, Folder, interrupt

from shoal.testing.servers.programs import free_port
from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import wait_until
from shoal.urls.canonical import lane_of

PRODUCTS = 60


def wait_for_bound(folder: Folder, text: str) -> str:
    """What the crawl says it is bound by, once it says this."""
    lines: list[str] = []

    def is_so() -> bool:
        lines.append(folder.json("status", "books-1")["bound"])
        return text in lines[-1]

    # Each look is a process: without a pause they would take the CPU from the crawl.
    wait_until(is_so, seconds=SECONDS, otherwise=f"it is never bound by {text}", pause=0.5)
    return lines[-1]


def test_the_pace_that_an_operator_set_is_named_as_such(folder: Folder, site: SiteProcess) -> None:
    with folder.start("run", folder.spider(site.url, rate="1/s")) as running:
        folder.wait_for_pages(1)
        folder.run("pace", lane_of(site.url), "30/m")
        bound = wait_for_bound(folder, "politeness")
        assert bound == f"politeness: {lane_of(site.url)} at 30/m, set by `shoal pace`"
        shown = folder.run("status", "books-1").stdout
        assert f"bound by {bound}" in shown
        folder.run("pause")
        assert "bound by" not in folder.run("status", "books-1").stdout
        assert "paused by an operator; `shoal resume` lets it go on" in folder.run("status", "books-1").stdout
        interrupt(running)
        running.communicate(timeout=SECONDS)


# Seven seconds of CPU: only handlers that truly use up a core show that the figure is measured.
@pytest.mark.full
def test_handlers_that_use_all_of_the_cpu_are_named(folder: Folder, site: SiteProcess) -> None:
    burn = "import time; end = time.process_time() + 0.3\n        while time.process_time() < end: pass"
    with folder.start("run", folder.spider(site.url, first=burn)) as running:
        folder.wait_for_pages(0)
        assert "of a core each; --workers helps while cores are free" in wait_for_bound(folder, "handlers and parsing")
        interrupt(running)
        running.communicate(timeout=SECONDS)


def test_a_proxy_that_is_down_is_said_once_by_the_coordinator_of_a_fleet(folder: Folder, site: SiteProcess) -> None:
    address = f"127.0.0.8:{free_port()}"
    down = f"proxy proxies/{address} is down: "
    (folder.path / "proxies.txt").write_text(f"http://anna:s3cret@{address}\n")
    name = folder.spider(site.url)
    with folder.start("run", name, "--proxies", "proxies.txt", "--workers", "2") as running:
        folder.wait_for_pages(0, workers=2)
        assert wait_for_bound(folder, down).startswith("every exit of proxies rests until ")
        status = folder.run("status", "books-1").stdout
        interrupt(running)
        _, err = running.communicate(timeout=SECONDS)
    assert down in status
    assert sum(line.startswith(down) for line in err.splitlines()) == 1, err
    assert "s3cret" not in f"{status}{err}"
