"""`-a NAME=VALUE`: the same spider with other arguments, in every worker of the crawl."""

from __future__ import annotations

import json
import signal

import pytest
from command_line import Folder

from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 8
SPIDER = """
from shoal import Item, Spider

class Books(Spider):
    city = "Bonn"
    rate = "unlimited"
    settings = {{"allow_private": True, "obey_robots": False}}

    def start(self):
        yield "{url}?city=" + self.city

    def parse(self, page):
        yield Item(key=page.url, city=self.city)
        yield from page.follow("a.book, a.next, a")
"""


@pytest.fixture
def spider(folder: Folder, site: SiteProcess) -> str:
    (folder.path / "books.py").write_text(SPIDER.format(url=site.url))
    return "books.py"


def cities(folder: Folder) -> set[str]:
    lines = folder.run("export", "-o", "-").stdout.splitlines()
    return {json.loads(line)["city"] for line in lines}


def test_every_worker_has_the_arguments(folder: Folder, spider: str) -> None:
    folder.run("run", spider, "--workers", "2", "-a", "city=Köln")
    assert cities(folder) == {"Köln"}


def test_an_unfinished_crawl_goes_on_with_its_own_arguments_alone(folder: Folder, spider: str) -> None:
    with folder.start("run", spider, "-a", "city=Köln", "--rate", "10/m") as begun:
        folder.wait_for_pages(1)
        begun.send_signal(signal.SIGTERM)
        begun.wait(60)
    for other in (["-a", "city=Ulm"], []):
        refused = folder.run("run", spider, *other, code=2).stderr
        assert "books-1 is unfinished and was begun with -a 'city=Köln': run it with the same arguments" in refused
    folder.run("run", spider, "-a", "city=Köln", "--rate", "unlimited")
    assert cities(folder) == {"Köln"}
    folder.run("run", spider, "--again", "-a", "city=Ulm")
    assert cities(folder) == {"Ulm"}


@pytest.mark.parametrize("given", ["city", "=x", "two words=x"])
def test_what_is_no_argument_is_refused(folder: Folder, spider: str, given: str) -> None:
    assert "write it as -a NAME=VALUE" in folder.run("run", spider, "-a", given, code=2).stderr
