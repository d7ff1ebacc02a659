"""The spider behind `shoal crawl`."""

from __future__ import annotations

from shoal.spider.follow import Follow
from shoal.spider.generic import LINKS_LISTED, SitePages
from shoal.spider.spider import Item
from shoal.testing.fakes import make_page


def test_of_a_page_of_a_hundred_thousand_links_the_first_are_listed() -> None:
    page = make_page("<title>many</title>" + "".join(f"<a href=/{number}>x</a>" for number in range(100_000)))
    item, links = SitePages().parse(page)
    assert isinstance(item, Item)
    assert item["title"] == "many"
    assert item["links"] == [f"https://a.test/{number}" for number in range(LINKS_LISTED)]
    assert isinstance(links, Follow)
    assert len(links.hrefs()) == 100_000
