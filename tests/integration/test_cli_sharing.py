"""How a crawl shares hosts with others, from the command line: decided at its start, changed later, shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Folder

from shoal.testing.sites.site_process import site_process

SPIDER = """
from shoal import Item, Spider

class Shop(Spider):
    settings = {{"allow_private": True, "obey_robots": False, "rate": "200/s"}}
    start = "{url}"

    def parse(self, page):
        yield Item(key=page.url)
        yield page.follow("a")
"""


@pytest.fixture
def shop(folder: Folder, tmp_path: Path) -> Iterator[str]:
    with site_process("--graph", "300", log=tmp_path / "hits.jsonl") as site:
        (folder.path / "shop.py").write_text(SPIDER.format(url=site.url))
        yield "shop.py"


def test_the_weight_of_a_crawl_can_change_and_its_scope_cannot(folder: Folder, shop: str) -> None:
    folder.run("run", shop, "--weight", "2", "--pace-scope", "crawl", "--max-items", "5")
    status = folder.json("status", "shop-1")
    assert (status["weight"], status["pace_scope"]) == (2.0, "crawl")
    shown = folder.run("status", "shop-1").stdout
    assert "weight:           2" in shown
    assert "limits of hosts:  its own (pace_scope = crawl)" in shown
    said = folder.run("run", shop, "--weight", "0.5", "--max-items", "150").stderr
    assert "pace_scope is fixed when a crawl begins" in said
    status = folder.json("status", "shop-1")
    assert (status["weight"], status["pace_scope"]) == (0.5, "crawl")
    said = folder.run("run", shop, "--pace-scope", "crawl").stderr
    assert "takes effect in a new crawl" not in said
    assert folder.json("status", "shop-1")["weight"] == 1.0


def test_a_run_that_shares_hosts_as_crawls_usually_do_says_nothing_of_it(folder: Folder, shop: str) -> None:
    folder.run("run", shop)
    shown = folder.run("status", "shop-1").stdout
    assert "weight" not in shown
    assert "limits of hosts" not in shown
