"""Crawls of sites that let in only who brings their cookie back, without an account."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from exit_crawl import BACKENDS, ExitCrawl, site

from called_here import call_shoal
from shoal import Item, Spider
from shoal.archive import open_archive
from shoal.testing.sites.loopback import LoopbackServer, Reply, Request, reply

PAGES = 12
SECRET = "planted-consent-4b81"

NewCrawl = Callable[..., ExitCrawl]
Wall = Callable[["Shop", Request], Reply]


class Shop:
    """A site with links between its pages, behind a wall."""

    def __init__(self, wall: Wall) -> None:
        self._wall = wall
        self._numbers = itertools.count()
        self.walls: Counter[str] = Counter()
        self.delay = 0.0

    def answer(self, request: Request) -> Reply:
        if request.path == "/robots.txt":
            return reply("User-agent: *\nAllow: /", kind="text/plain")
        has_pass = f"pass={SECRET}" in request.headers.get("cookie", "").split("; ")
        if has_pass and not request.path.startswith("/wall"):
            links = "".join(f'<a href="/{number}">x</a>' for number in range(PAGES))
            again = {"Set-Cookie": f"pass={SECRET}; Path=/; Max-Age=3600"}
            return reply(f"<h1>{request.path}</h1>{links}", headers=again)
        self.walls[request.path] += 1
        return self._wall(self, request)._replace(delay=self.delay)

    def new_number(self) -> int:
        return next(self._numbers)


def refuses(_: Shop, request: Request) -> Reply:
    return reply("no entry", status=403, headers={"Set-Cookie": f"pass={SECRET}; Path=/"})


def redirects_to_itself(_: Shop, request: Request) -> Reply:
    return reply("", status=302, headers={"Location": request.path, "Set-Cookie": f"pass={SECRET}; Path=/"})


def asks_for_consent(_: Shop, request: Request) -> Reply:
    """Each page has a wall of its own, which alone sets the cookie."""
    if request.path.startswith("/wall?to="):
        to = request.path.removeprefix("/wall?to=")
        return reply("", status=302, headers={"Location": to, "Set-Cookie": f"pass={SECRET}; Path=/"})
    return reply("", status=302, headers={"Location": f"/wall?to={request.path}"})


def remembers_the_page(shop: Shop, request: Request) -> Reply:
    """All pages have one wall, which knows by a cookie where the visitor came from."""
    if request.path == "/wall":
        cookies = dict(part.partition("=")[::2] for part in request.headers.get("cookie", "").split("; "))
        to = cookies.get("from", "none").partition(".")[0]
        return reply("", status=302, headers={"Location": f"/{to}", "Set-Cookie": f"pass={SECRET}; Path=/"})
    number = f"{request.path[1:]}.{shop.new_number()}"
    return reply("", status=302, headers={"Location": "/wall", "Set-Cookie": f"from={number}; Path=/"})


class Everything(Spider):
    def parse(self, page: Any) -> Any:
        yield Item(key=page.url, title=page.text("h1"))
        yield page.follow("a")


async def titles_of(crawl: ExitCrawl) -> list[str]:
    return sorted(msgspec.json.decode(item.data)["title"] for item in await crawl.items())


def crawl_of(exit_crawl: NewCrawl, server: LoopbackServer, *, starts: int = 1, **settings: Any) -> ExitCrawl:
    urls = [f"http://127.0.0.1:{server.port}/{number}" for number in range(starts)]
    return exit_crawl(Everything, *urls, **{"rate": "unlimited", "obey_robots": True, **settings})


ALL = sorted(f"/{number}" for number in range(PAGES))
WALLS = [refuses, redirects_to_itself, asks_for_consent, remembers_the_page]


@pytest.mark.parametrize("wall", WALLS)
async def test_every_page_behind_a_wall_is_reached(exit_crawl: NewCrawl, wall: Wall) -> None:
    shop = Shop(wall)
    async with site(shop.answer) as server:
        crawl = crawl_of(exit_crawl, server)
        progress = await crawl.run()
        assert await titles_of(crawl) == ALL
        assert (progress.dead, progress.retried) == (0, 0)
        assert sum(shop.walls.values()) <= 2


@pytest.mark.parametrize("value", ["caf\xe9", "caf\xc3\xa9"], ids=["Latin-1", "UTF-8"])
@pytest.mark.parametrize("cookies", ["worker", "fleet"])
async def test_a_cookie_with_raw_bytes_comes_back_as_it_was(exit_crawl: NewCrawl, value: str, cookies: str) -> None:
    def answer(request: Request) -> Reply:
        if request.headers.get("cookie") == f"pass={value}":
            return reply(f"<h1>{request.path}</h1><a href=/1>x</a>")
        return reply("no entry", status=403, headers={"Set-Cookie": f"pass={value}; Path=/"})

    async with site(answer) as server:
        crawl = crawl_of(exit_crawl, server, cookies=cookies, obey_robots=False)
        await crawl.run()
        assert await titles_of(crawl) == ["/0", "/1"]
        assert [hit.status for hit in server.requests] == [403, 200, 200]


@pytest.mark.parametrize("wall", WALLS)
async def test_many_pages_that_are_asked_for_at_once_are_all_reached(exit_crawl: NewCrawl, wall: Wall) -> None:
    shop = Shop(wall)
    shop.delay = 0.1
    async with site(shop.answer) as server:
        crawl = crawl_of(exit_crawl, server, starts=PAGES, obey_robots=False)
        await crawl.run()
        assert await titles_of(crawl) == ALL


@pytest.mark.full
@pytest.mark.parametrize("wall", WALLS)
async def test_with_cookies_off_the_wall_stays(exit_crawl: NewCrawl, wall: Wall) -> None:
    async with site(Shop(wall).answer) as server:
        crawl = crawl_of(exit_crawl, server, cookies="off")
        progress = await crawl.run()
        assert await titles_of(crawl) == []
        if wall is refuses:
            assert progress.outcomes == {"http_403": 1}


@pytest.mark.full
@pytest.mark.parametrize("wall", WALLS)
@pytest.mark.parametrize("cookies", ["worker", "fleet"])
@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
async def test_several_workers_reach_every_page(exit_crawl: NewCrawl, wall: Wall, cookies: str, backend: str) -> None:
    async with site(Shop(wall).answer) as server:
        crawl = crawl_of(exit_crawl, server, starts=PAGES, cookies=cookies, concurrency=2)
        await crawl.begin()
        await asyncio.gather(*(crawl.work() for _ in range(3)))
        assert await titles_of(crawl) == ALL


@pytest.mark.parametrize(("cookies", "walls"), [("worker", 2), ("fleet", 1)])
@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
async def test_a_fleet_that_shares_its_cookies_meets_a_wall_once(
    exit_crawl: NewCrawl, cookies: str, walls: int, backend: str
) -> None:
    shop = Shop(refuses)
    async with site(shop.answer) as server:
        crawl = crawl_of(
            exit_crawl, server, cookies=cookies, per_host=1, concurrency=1, horizon_seconds=0.0, rate="20/s"
        )
        await crawl.run(until=lambda progress: progress.done >= 3)
        assert sum(shop.walls.values()) == 1
        await crawl.work()
        assert await titles_of(crawl) == ALL
        assert sum(shop.walls.values()) == walls


# Three seconds: a crawl with the command line, and every command that prints something of it.
@pytest.mark.full
async def test_no_cookie_reaches_the_archive_the_log_or_a_message(tmp_path: Path) -> None:
    spider = tmp_path / "shop.py"
    async with site(Shop(remembers_the_page).answer) as server:
        spider.write_text(
            "from shoal import Item, Spider\n\n\nclass Shop(Spider):\n"
            f"    start = ['http://127.0.0.1:{server.port}/0']\n"
            "    settings = {'allow_private': True, 'rate': 'unlimited', 'max_attempts': 1}\n\n"
            "    def parse(self, page):\n"
            "        yield Item(key=page.url, title=page.text('h1'))\n"
            "        yield page.follow('a')\n"
            "        if page.url.endswith('/3'):\n"
            f"            raise RuntimeError('the jar has {SECRET}')\n"
        )
        printed = [await run(tmp_path, "shop.py", "--archive", "pages")]
        urls = [f"http://127.0.0.1:{server.port}/{number}" for number in (0, 3)]
        for arguments in (
            ["status", "shop-1", "--json"],
            *(["why", url, "shop-1"] for url in urls),
            *(["dead", "list", "shop-1", *json] for json in ([], ["--json"])),
            ["sql", "SELECT * FROM fetches"],
            ["export", "shop-1", "-o", "-"],
            ["page", urls[0], "--archive", "pages", "--headers"],
        ):
            printed.append(call_shoal(tmp_path, *arguments).stdout)
    assert "the jar has ***" in "".join(printed)
    kept = files_of(tmp_path)
    assert any(name.startswith("pages/") for name in kept)
    assert [name for name, data in kept.items() if SECRET.encode() in data] == ["shop.py"]
    assert SECRET not in "".join(printed)
    archive = await open_archive(str(tmp_path / "pages"))
    captures = [capture async for some in archive.scan("shop-1") for capture in some]
    await archive.close()
    assert len(captures) == PAGES
    assert SECRET not in repr(captures)
    assert all("set-cookie" not in capture.headers for capture in captures)


def files_of(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


async def run(folder: Path, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "shoal", "run", *arguments),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()
