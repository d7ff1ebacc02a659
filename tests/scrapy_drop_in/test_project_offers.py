"""Exits that one Scrapy process offers: only its requests leave through them, those for their region wait for it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import scrapy
from scrapy.settings import Settings as ScrapySettings
from scrapy_project import Project
from small_site import Page, small_site

from shoal.errors import UsageError
from shoal.exits.offered import NO_EXITS, OwnExits, load_own_exits
from shoal.scrapy.pools import ProjectPools, pools_of
from shoal.scrapy.requests import UnfitRequest
from shoal.settings.table import Settings
from shoal.testing.servers.proxy_servers import Tinyproxy
from shoal.testing.waiting import wait_until

SECONDS = 120.0
PASSWORD = "geheim-wort"
REGIONAL = """
    def parse(self, response):
        yield {"key": response.url}
        for link in response.css("a::attr(href)").getall():
            meta = {"shoal_region": "eu"} if int(link[1:]) % 2 else {}
            yield response.follow(link, callback=self.parse, meta=meta)
"""


# Nine seconds: two processes of Scrapy, of which the second one has to learn that the first one has exits.
@pytest.mark.full
def test_requests_of_a_region_leave_through_the_process_that_offers_it(
    project: Project, start_proxy: Callable[..., Tinyproxy]
) -> None:
    links = "".join(f'<a href="/{number}">x</a>' for number in range(1, 9))
    pages: dict[str, Page | str] = {"/": links, **{f"/{number}": "<h1>x</h1>" for number in range(1, 9)}}
    proxy = start_proxy("127.0.0.2", user="anna", password=PASSWORD)
    text = f'machine = "fra-1"\n[exits.own]\nurls = ["{proxy.url}"]\nregion = "eu"\n'
    (project.folder / "fra.toml").write_text(text)
    with small_site(pages) as site:
        project.write(site.url + "/", REGIONAL)
        begun: list[subprocess.Popen[str]] = [project.start()]
        try:
            wait_until(lambda: waits_for_the_region(project), otherwise="no request waits for the region alone")
            assert {hit.path for hit in site.log} == {"/", "/2", "/4", "/6", "/8"}
            begun.append(project.start("-s", "SHOAL_EXITS=fra.toml"))
            outputs = [process.communicate(timeout=SECONDS)[0] for process in begun]
        finally:
            for process in begun:
                process.kill()
        assert [process.returncode for process in begun] == [0, 0], outputs
        peers = {hit.path: hit.peer for hit in site.log}
    assert peers == {"/": "127.0.0.1", **{f"/{number}": f"127.0.0.{1 + number % 2}" for number in range(1, 9)}}
    assert project.counts() == ("finished", 9, 0, 0)
    (used,) = project.shoal("exits", "pages-1")["exits"]
    assert (used["exit"], used["machine"], used["ok"]) == (f"region:eu/127.0.0.2:{proxy.port}@fra-1", "fra-1", 4)
    assert PASSWORD not in "".join(outputs)


def waits_for_the_region(project: Project) -> bool:
    """Whether everything is done but what asks for the region."""
    # The file is there a moment before the crawl is.
    if not (project.folder / "shoal.db").exists() or not project.shoal("crawls"):
        return False
    status = project.shoal("status", "pages-1")
    return [one["waiting"] for one in status["kinds"] if one["kind"] == "http@eu"] == [4] == [status["left"]]


def read(own: OwnExits = NO_EXITS, **settings: str) -> ProjectPools:
    return pools_of(Settings(**settings), ScrapySettings(), has_judge=True, own=own)


def pool_for(pools: ProjectPools, **meta: object) -> str:
    return pools.of(scrapy.Request("http://a.test/", meta=meta), parent=None, goes_on=False)


def test_a_request_asks_for_a_region_by_its_meta_or_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pool_for(read(), shoal_region="eu") == "region:eu"
    assert pool_for(read(region="eu")) == "region:eu"
    assert pool_for(read(region="eu"), shoal_pool="direct") == "direct"
    (tmp_path / "shoal.toml").write_text('[proxies.europe]\nurl = "http://10.0.0.1:80"\nregion = "eu"')
    assert pool_for(read(), shoal_region="eu") == "europe"
    assert pool_for(read(region="eu")) == "europe"
    with pytest.raises(UnfitRequest, match=r'both meta\["shoal_pool"\] and meta\["shoal_region"\]'):
        pool_for(read(), shoal_region="eu", shoal_pool="europe")
    with pytest.raises(UnfitRequest, match="'e u' is no name of a region"):
        pool_for(read(), shoal_region="e u")
    with pytest.raises(UsageError, match="SHOAL_POOL and SHOAL_REGION are both set"):
        read(region="eu", pool="direct")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("bind:127.0.0.2", r"\[exits.own\] cannot be used with Scrapy: Scrapy uses a connection again for any request"),
        ("socks5://10.0.0.1:1080", r"\[exits.own\] cannot be used with Scrapy: it has a proxy with socks5://"),
    ],
)
def test_exits_that_scrapy_cannot_use_are_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text(f'[exits.own]\nurl = "{url}"\nregion = "eu"\n')
    with pytest.raises(UsageError, match=f"SHOAL_EXITS: {said}"):
        read(load_own_exits(tmp_path / "own.toml", {}))


def test_accounts_that_are_headers_are_left_to_other_spiders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    login = '{name = "a", headers = {X-Api-Key = "geheim"}}'
    (tmp_path / "shoal.toml").write_text(f'[accounts.api]\nhosts = ["a.test"]\nlogins = [{login}]\n')
    with pytest.raises(UnfitRequest, match="'api' cannot be used with Scrapy: headers of accounts are sent by spiders"):
        pool_for(read(), shoal_pool="api")
