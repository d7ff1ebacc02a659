"""Scrapy's requests through real proxies: who the site sees, what bad exits cost, and where the password is not."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import trustme
from scrapy_project import Project
from small_site import Answer, Page, SmallSite, Visitor, small_site

from shoal.testing.servers.programs import free_port
from shoal.testing.servers.proxy_servers import Tinyproxy
from shoal.testing.servers.redis_server import RedisServer

PAGES = 24
KILL_SECONDS = 60.0
PASSWORD = "geheim-wort"
NUMBERS = """
    def parse(self, response):
        yield {"key": response.css("h1::text").get()}
        yield from response.follow_all(css="a", callback=self.parse)
"""

StartProxy = Callable[..., Tinyproxy]


def numbered(pages: int = PAGES) -> dict[str, Page | str]:
    """Pages with a number; the first one links to all others, and to one that robots.txt forbids."""
    links = "".join(f'<a href="/{number}">x</a>' for number in range(1, pages)) + '<a href="/private/x">x</a>'
    site: dict[str, Page | str] = {f"/{number}": f"<h1>{number}</h1>" for number in range(1, pages)}
    return site | {"/": f"<h1>0</h1>{links}", "/robots.txt": "User-agent: *\nDisallow: /private"}


def write_ring(project: Project, *urls: str, **options: Any) -> None:
    """A pool in a file of its own."""
    lines = ["[ring]", f"urls = {json.dumps(list(urls))}", *(f"{key} = {json.dumps(v)}" for key, v in options.items())]
    (project.folder / "ring.toml").write_text("\n".join(lines) + "\n")


THROUGH_RING = ("-s", "SHOAL_PROXIES=ring.toml")
OBEYING = ("-s", "ROBOTSTXT_OBEY=1")


def peers(site: SmallSite) -> Counter[str]:
    return Counter(hit.peer for hit in site.log)


def exits_of(project: Project) -> dict[str, dict[str, Any]]:
    """What `shoal exits` says, by the address of the proxy."""
    return {one["exit"].partition("/")[2].partition(":")[0]: one for one in project.shoal("exits", "pages-1")["exits"]}


def assert_no_secret(project: Project, output: str, password: str = PASSWORD, user: str = "anna") -> None:
    """The proxy's password is neither in the log nor in any file but the one it was written in, also not encoded."""
    forms = [password.encode(), base64.b64encode(f"{user}:{password}".encode())]
    own = {"ring.toml", *(path.name for path in project.folder.glob("tinyproxy-*.conf"))}
    written = [path for path in project.folder.rglob("*") if path.is_file() and path.name not in own]
    texts = {"log": output.encode(), **{path.name: path.read_bytes() for path in written}}
    assert {"shoal.db", "out.jsonl"} <= texts.keys()
    assert [name for name, text in texts.items() if any(form in text for form in forms)] == []


EVERYTHING = """
    custom_settings = custom_settings | {
        "ITEM_PIPELINES": {"scrapy.pipelines.files.FilesPipeline": 1},
        "FILES_STORE": "files", "ROBOTSTXT_OBEY": True, "LOG_LEVEL": "DEBUG",
    }

    def parse(self, response):
        yield {"key": response.css("h1::text").get(), "file_urls": [response.urljoin("/file")]}
        yield from response.follow_all(css="a", callback=self.parse)
        # As many do: the meta and the headers of the page are passed on.
        yield scrapy.Request(
            response.urljoin("/meta"), self.inline, meta=response.meta, headers=response.request.headers
        )

    async def inline(self, response):
        inner = await self.crawler.engine.download_async(scrapy.Request(response.urljoin("/inside")))
        yield {"key": "inside", "said": inner.text}
        if "again" in response.url:
            raise ValueError("a dead letter keeps the whole task")
        yield response.request.replace(url=response.url + "?again=1", dont_filter=True)
"""


@pytest.mark.parametrize(
    "reactor",
    ["asyncioreactor.AsyncioSelectorReactor", pytest.param("selectreactor.SelectReactor", marks=pytest.mark.full)],
)
def test_nothing_of_a_page_leaves_by_another_way_than_its_exit(
    project: Project, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch, reactor: str
) -> None:
    """Pages, redirects, retries, files of a pipeline, requests of a callback, robots.txt."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.9:{free_port()}")
    ways: dict[str, Page | str] = {
        "/": "<h1>0</h1><a href='/hop'>1</a><a href='/unsteady'>2</a><a href='/private/x'>3</a>",
        "/hop": lambda _: Answer(status=302, headers={"Location": "/landed"}),
        "/landed": "<h1>landed</h1>",
        "/unsteady": lambda visitor: Answer("<h1>steady</h1>", status=200 if visitor.visit > 1 else 503),
        "/robots.txt": "User-agent: *\nDisallow: /private",
    }
    with small_site(ways) as site:
        locked = [start_proxy(f"127.0.0.{number}", user="anna", password=PASSWORD).url for number in (2, 3)]
        write_ring(project, *locked, cost=0.5)
        project.write(site.url + "/", EVERYTHING)
        output = project.run(*THROUGH_RING, "-s", f"TWISTED_REACTOR=twisted.internet.{reactor}")
        assert peers(site).keys() == {"127.0.0.2", "127.0.0.3"}
        seen = {hit.path for hit in site.log}
    assert seen == {
        "/", "/hop", "/landed", "/unsteady", "/robots.txt", "/file", "/meta", "/meta?again=1", "/inside",
    }  # fmt: skip
    assert {item["key"] for item in project.items()} == {"0", "landed", "steady", "inside"}
    assert [letter["url"] for letter in project.shoal("dead", "list")] == [f"{site.url}/meta?again=1"]
    told = exits_of(project)
    assert told.keys() == {"127.0.0.2", "127.0.0.3"}
    assert all(one["ok"] == one["requests"] and one["bytes"] > 0 for one in told.values())
    assert all(one["cost"] == 0.5 * one["requests"] for one in told.values())
    assert_no_secret(project, output)


@pytest.mark.full
@pytest.mark.parametrize("obeys", [True, False])
def test_pages_get_past_bad_exits_and_none_is_lost(project: Project, start_proxy: StartProxy, *, obeys: bool) -> None:
    """robots.txt too: an exit that fails to bring it does not mean that there is none."""
    with small_site(numbered()) as site:
        gone = f"http://127.0.0.4:{free_port()}"
        refusing = start_proxy("127.0.0.5", serves_us=False)
        wrong = start_proxy("127.0.0.6", user="anna", password="right").url.replace("right", PASSWORD)
        good = start_proxy("127.0.0.2").url
        write_ring(project, gone, refusing.url, wrong, good, rate="100/s")
        project.write(site.url + "/", NUMBERS)
        output = project.run(*THROUGH_RING, *(OBEYING if obeys else ()))
        asked = Counter(hit.path for hit in site.log if hit.path != "/robots.txt")
        assert peers(site).keys() == {"127.0.0.2"}
    expected = {"/", *(f"/{number}" for number in range(1, PAGES)), *(() if obeys else ("/private/x",))}
    assert asked == dict.fromkeys(expected, 1)
    state, done, dead, left = project.counts()
    assert (state, dead, left) == ("finished", 0, 0)
    assert done == PAGES + 1  # the forbidden page is done, too: it is not asked for
    told = exits_of(project)
    assert told["127.0.0.2"]["failed"] == 0
    for bad in ("127.0.0.4", "127.0.0.5", "127.0.0.6"):
        assert (told[bad]["ok"], told[bad]["failed"] > 0) == (0, True)
        assert told[bad]["health"] in ("resting", "parked")
    assert "retry/count" not in output
    assert "dupefilter/filtered" not in output
    assert f"proxy ring/{gone.removeprefix('http://')} is down" in output
    project.items()
    assert_no_secret(project, output)


@pytest.mark.full
def test_exits_that_the_site_turns_away_rest(project: Project, start_proxy: StartProxy) -> None:
    """By a status, and by a block page, which comes compressed."""

    def picky(visitor: Visitor) -> Answer:
        if visitor.peer == "127.0.0.3":
            return Answer("no", status=403)
        if visitor.peer == "127.0.0.4":
            return Answer("<script>window._cf_chl_opt={}</script>", is_zipped=True)
        if visitor.peer == "127.0.0.5":
            return Answer("slow down", status=429)
        return Answer(str(numbered()[visitor.path]))

    with small_site(dict.fromkeys(numbered(), picky)) as site:
        ring = [start_proxy(f"127.0.0.{number}").url for number in (3, 4, 5, 2)]
        write_ring(project, *ring, rate="100/s")
        project.write(site.url + "/", NUMBERS)
        output = project.run(*THROUGH_RING, "-s", "SHOAL_MAX_EXIT_TRIES=20")
    assert project.counts()[:3] == ("finished", PAGES + 1, 0)
    assert len({item["key"] for item in project.items() if item["key"]}) == PAGES
    told = exits_of(project)
    assert {name: one["blocked"] > 0 for name, one in told.items()} == {
        "127.0.0.2": False, "127.0.0.3": True, "127.0.0.4": True, "127.0.0.5": True,
    }  # fmt: skip
    assert "retry/count" not in output


GIVEN_UP = """
    async def start(self):
        yield scrapy.Request(self.start_urls[0], errback=self.failed)

    def failed(self, failure):
        yield {"key": failure.type.__name__}
        yield scrapy.Request(self.start_urls[0] + "later", self.parse, meta={"shoal_pool": "direct"})

    def parse(self, response):
        yield {"key": response.url}
"""


@pytest.mark.full
def test_a_page_that_no_exit_can_fetch_is_a_dead_letter_and_its_errback_runs(
    project: Project, start_proxy: StartProxy
) -> None:
    with small_site({"/": lambda _: Answer("no", status=403)}) as site:
        write_ring(project, start_proxy("127.0.0.2").url, start_proxy("127.0.0.3").url, quarantine="1s")
        project.write(site.url + "/", GIVEN_UP)
        project.run(*THROUGH_RING, "-s", "SHOAL_MAX_EXIT_TRIES=2")
        assert Counter(hit.path for hit in site.log) == {"/": 2, "/later": 1}
        assert {hit.peer for hit in site.log if hit.path == "/later"} == {"127.0.0.1"}
    assert project.counts() == ("finished", 1, 1, 0)
    (letter,) = project.shoal("dead", "list", "pages-1")
    assert letter["reason"] == "blocked: turned away through 2 exits"
    assert {item["key"] for item in project.items()} == {"GivenUp", f"{site.url}/later"}


WANTED = """
    handle_httpstatus_list = [403]

    def parse(self, response):
        yield {"key": str(response.status)}
"""


@pytest.mark.full
def test_a_status_that_the_spider_wants_is_no_refusal(project: Project, start_proxy: StartProxy) -> None:
    with small_site({"/": lambda _: Answer("mine", status=403)}) as site:
        write_ring(project, start_proxy("127.0.0.2").url)
        project.write(site.url + "/", WANTED)
        project.run(*THROUGH_RING)
    assert [item["key"] for item in project.items()] == ["403"]
    assert exits_of(project)["127.0.0.2"]["ok"] == 1


POOLS = {"one": "127.0.0.2", "two": "127.0.0.3"}
BY_REQUEST = """
    def parse(self, response):
        for path, meta in (("/one", {"shoal_pool": "one"}), ("/two", {"shoal_pool": "two"}), ("/plain", {})):
            yield scrapy.Request(response.urljoin(path), self.deeper, meta=meta)
        yield scrapy.Request(response.urljoin("/own"), self.deeper, meta={"proxy": OWN})

    def deeper(self, response):
        yield {"key": response.url}
        if response.url.count("/") == 3:
            yield response.follow(response.url + "/below", self.deeper)
            yield response.follow(response.url + "/home", self.deeper, meta={"shoal_pool": "direct"})
"""


@pytest.mark.full
def test_a_request_names_its_pool_and_links_keep_that_of_their_page(project: Project, start_proxy: StartProxy) -> None:
    with small_site({}) as site:
        tables = [f'[proxies.{name}]\nurls = ["{start_proxy(at).url}"]\n' for name, at in POOLS.items()]
        (project.folder / "shoal.toml").write_text("".join(tables))
        project.write(site.url + "/", BY_REQUEST.replace("OWN", repr(start_proxy("127.0.0.4").url)))
        project.run()
        came = {hit.path: hit.peer for hit in site.log}
    assert came == {
        "/": "127.0.0.1",
        "/plain": "127.0.0.1", "/plain/below": "127.0.0.1", "/plain/home": "127.0.0.1",
        "/one": "127.0.0.2", "/one/below": "127.0.0.2", "/one/home": "127.0.0.1",
        "/two": "127.0.0.3", "/two/below": "127.0.0.3", "/two/home": "127.0.0.1",
        "/own": "127.0.0.4", "/own/below": "127.0.0.1", "/own/home": "127.0.0.1",
    }  # fmt: skip
    row = project.shoal("sql", "SELECT exit FROM fetches WHERE url LIKE '%/one/below'")
    assert row["exit"].startswith("one/127.0.0.2:")


SLIPS = """
    async def start(self):
        yield scrapy.Request(self.start_urls[0] + "start", meta={"shoal_pool": "rings"})
        yield scrapy.Request(self.start_urls[0])

    def parse(self, response):
        yield scrapy.Request(response.urljoin("/typo"), meta={"shoal_pool": "rign"})
        yield scrapy.Request(response.urljoin("/both"), meta={"shoal_pool": "ring", "proxy": "http://127.0.0.1:1"})
"""


@pytest.mark.full
def test_a_pool_that_does_not_exist_is_an_error_that_names_the_request(
    project: Project, start_proxy: StartProxy
) -> None:
    with small_site({}) as site:
        write_ring(project, start_proxy("127.0.0.2").url)
        project.write(site.url + "/", SLIPS)
        output = project.run(*THROUGH_RING)
        assert {hit.path for hit in site.log} == {"/"}
    assert f"<GET {site.url}/typo>: there is no pool 'rign', only direct, ring; did you mean 'ring'?" in output
    assert f'<GET {site.url}/both> has both meta["proxy"] and meta["shoal_pool"]' in output
    reasons = {letter["url"]: letter["reason"] for letter in project.shoal("dead", "list", "pages-1")}
    assert reasons.keys() == {f"{site.url}/start", f"{site.url}/"}
    assert all(reason.startswith("unfit: ") for reason in reasons.values())


@pytest.mark.full
def test_the_limits_of_an_exit_hold_for_two_processes(
    project: Project, start_proxy: StartProxy, redis: RedisServer
) -> None:
    """Slow, about 5 s: each of two exits may start five requests a second."""
    with small_site(numbered(20)) as site:
        write_ring(project, start_proxy("127.0.0.2").url, start_proxy("127.0.0.3").url, rate="5/s")
        project.write(site.url + "/", NUMBERS, frontier=redis.url)
        both = [project.start(*THROUGH_RING) for _ in range(2)]
        outputs = [process.communicate(timeout=120)[0] for process in both]
        assert [process.returncode for process in both] == [0, 0], outputs
        starts: dict[str, list[float]] = defaultdict(list)
        for hit in site.log:
            starts[hit.peer].append(hit.at)
    assert starts.keys() == {"127.0.0.2", "127.0.0.3"}
    for times in starts.values():
        assert max(sum(at <= other < at + 0.9 for other in times) for at in times) <= 6


@pytest.mark.full
def test_https_goes_through_tunnels(project: Project, start_proxy: StartProxy) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with small_site(numbered(), tls=context) as site:
        good = start_proxy("127.0.0.2", user="anna", password=PASSWORD)
        wrong = start_proxy("127.0.0.3", user="anna", password="right").url.replace("right", PASSWORD)
        gone = f"http://127.0.0.4:{free_port()}"
        write_ring(project, wrong, gone, good.url, rate="100/s")
        project.write(site.url + "/", NUMBERS)
        output = project.run(*THROUGH_RING, "-s", "RETRY_TIMES=0")
        assert peers(site).keys() == {"127.0.0.2"}
    assert project.counts()[:3] == ("finished", PAGES + 1, 0)
    told = exits_of(project)
    assert [told[f"127.0.0.{number}"]["failed"] > 0 for number in (2, 3, 4)] == [False, True, True]
    assert "it refused to open a tunnel (401)" in output
    project.items()
    assert_no_secret(project, output)


@pytest.mark.full
def test_a_killed_process_leaves_nothing_that_the_next_one_sends_by_another_way(
    project: Project, start_proxy: StartProxy
) -> None:
    with small_site(numbered(80)) as site:
        write_ring(project, start_proxy("127.0.0.2").url, start_proxy("127.0.0.3").url, rate="20/s")
        project.write(site.url + "/", NUMBERS)
        process = project.start(*THROUGH_RING)
        try:
            until = time.monotonic() + KILL_SECONDS
            while len(site.log) < 30:
                assert time.monotonic() < until, "the crawl does not begin"
                time.sleep(0.02)
        finally:
            process.kill()
            process.communicate()
        refused = project.run(code=1)
        project.run(*THROUGH_RING)
        assert peers(site).keys() == {"127.0.0.2", "127.0.0.3"}
    assert "was begun with the pool 'ring', which this process does not have" in refused
    assert project.counts() == ("finished", 81, 0, 0)
    assert {item["key"] for item in project.items() if item["key"]} == {str(number) for number in range(80)}


EXPLICIT = """
    custom_settings = {key: text for key, text in custom_settings.items() if key != "ADDONS"} | {
        "SCHEDULER": "shoal.scrapy.Scheduler",
        "SPIDER_MIDDLEWARES": {"shoal.scrapy.SpiderWatch": 1000},
        "ITEM_PIPELINES": {"shoal.scrapy.StorePipeline": 950},
        "DOWNLOADER_MIDDLEWARES": JUDGE,
    }
"""
NAMED = '{"shoal.scrapy.ExitJudge": 585}'


@pytest.mark.full
def test_the_explicit_form_needs_the_middleware_for_pools(project: Project, start_proxy: StartProxy) -> None:
    with small_site(numbered(3)) as site:
        write_ring(project, f"http://127.0.0.3:{free_port()}", start_proxy("127.0.0.2").url)
        project.write(site.url + "/", EXPLICIT.replace("JUDGE", "{}") + NUMBERS)
        output = project.run(*THROUGH_RING, code=1)
        assert 'DOWNLOADER_MIDDLEWARES lacks "shoal.scrapy.ExitJudge": 585' in output
        assert site.log == []
        project.write(site.url + "/", EXPLICIT.replace("JUDGE", NAMED) + NUMBERS)
        project.run(*THROUGH_RING)
        assert peers(site).keys() == {"127.0.0.2"}
    assert project.counts() == ("finished", 4, 0, 0)


@pytest.mark.full
def test_the_guard_looks_at_the_sites_address_not_at_the_proxys(project: Project, start_proxy: StartProxy) -> None:
    with small_site(numbered(4)) as site:
        write_ring(project, start_proxy("127.0.0.61").url)
        project.write(f"{site.url}/", NUMBERS)
        project.run(*THROUGH_RING, "-s", "SHOAL_ALLOW_ADDRESSES=127.0.0.1/32")
        state, done, dead, left = project.counts()
        assert (state, dead, left) == ("finished", 0, 0)
        assert done == 5
        assert peers(site).keys() == {"127.0.0.61"}
