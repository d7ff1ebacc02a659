"""Case G of the benchmark judges others: its kills and its counts must be right."""

import sys

import pytest

from bench.killing import Command, NotedSite, crawl_killed
from bench.site import SitePlan, build_site

pytestmark = pytest.mark.full

PLAN = SitePlan(pages=8)
# Asks for every page from the first on, also after a kill.
FORGETFUL = """
import sys, urllib.request
for path in sys.argv[2:]:
    urllib.request.urlopen(sys.argv[1] + path).read()
"""


def test_a_crawl_is_killed_at_each_count_and_started_again(tmp_path):
    build_site(PLAN, folder=tmp_path / "site")
    # Slow enough that a kill comes before the next page.
    site = NotedSite(PLAN, tmp_path / "site", delay=0.2)
    paths = [f"/{PLAN.path(number)}" for number in range(PLAN.pages)]

    with site.served() as url:
        command = Command([sys.executable, "-c", FORGETFUL, url, *paths], tmp_path, {})
        ended = crawl_killed(command, site=site, at=[1, 2])

    assert (ended.kills, ended.return_code) == (2, 0)
    assert site.asked[paths[0]] == 3
    assert site.asked[paths[-1]] == 1
    assert set(site.asked) == site.paths


def test_a_crawl_that_ends_before_the_next_kill_is_not_started_again(tmp_path):
    build_site(PLAN, folder=tmp_path / "site")
    site = NotedSite(PLAN, tmp_path / "site", delay=1.0)
    paths = [f"/{PLAN.path(number)}" for number in range(3)]

    with site.served() as url:
        command = Command([sys.executable, "-c", FORGETFUL, url, *paths], tmp_path, {})
        ended = crawl_killed(command, site=site, at=[1, 5, 7])

    assert (ended.kills, ended.return_code) == (1, 0)
    assert (site.asked[paths[0]], site.asked[paths[-1]]) == (2, 1)
