"""Exits of a fleet as users run it: worker processes over SQLite and Redis, and no secret in anything they leave."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from exit_crawl import BACKENDS, busiest_by_peer, graph, pages_of, silent_server, site

from called_here import call_shoal
from shoal.frontier import open_frontier
from shoal.model import Crawl, Pool
from shoal.testing.servers.programs import free_port
from shoal.testing.servers.proxy_servers import Gateway, Tinyproxy
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.loopback import LoopbackServer, Reply, Request, reply

SECONDS = 120.0
PAGES = 24
PROXY_WORD, WRONG_WORD, GATEWAY_KEY, ACCOUNT_WORD = "Pr0xyW0rd17", "Wr0ngW0rd17", "G4tewayK3y17", "Acc0untW0rd17"
COOKIE = "c00kie-of-anna-17"
TOKEN = "t0ken-for-the-site-17"
SPIDER = """
from urllib.parse import urlencode

from shoal import Item, Request, Spider

class Club(Spider):
    start = [
        Request("{base}/0", pool="ring"),
        Request("{base}/gate", pool="gate"),
        Request("{base}/member", pool="shop"),
        Request("{base}/blocked", pool="ring"),
        Request("{base}/broken", pool="shop", handler="broken"),
        Request("{base}/quoting", pool="gate", handler="quotes", headers={{"Authorization": "Bearer {token}"}}),
    ]
    settings = {{
        "allow_private": True, "obey_robots": False, "grace_seconds": 1.0, "max_attempts": 1, "pool": "ring",
        "first_byte_seconds": 5.0, "horizon_seconds": 0.3,
    }}

    async def login(self, session):
        await session.post("{base}/login", form=dict(session.account))
        if session.account["name"] == "bert":
            raise ValueError(f"cannot log in as {{dict(session.account)}}, {{urlencode(session.account)}}")

    def parse(self, page):
        yield Item(key=page.url, number=page.text("h1"))
        yield page.follow("a")

    def broken(self, page):
        raise ValueError("broken on purpose")

    def quotes(self, page):
        try:
            raise KeyError(str(page.task.headers))
        except KeyError as error:
            url = "http://anna:{proxy_word}@127.0.0.3:1"
            raise ValueError(f"{{page.task}} {{url}}: http://127.0.0.9/?key={gateway_key}") from error
"""


class Members:
    """The graph, with a login whose cookie the members' page wants to see."""

    def __init__(self) -> None:
        self.logins = 0
        self.cookies: set[str] = set()

    def answer(self, request: Request) -> Reply:
        if request.path == "/login":
            self.logins += 1
            return reply("ok", headers={"Set-Cookie": f"id={COOKIE}; Path=/"})
        if request.path == "/blocked":
            return reply("no", status=403)
        if request.path in ("/member", "/broken"):
            self.cookies.add(request.headers.get("cookie", ""))
        assert "cookie" not in request.headers or request.path in ("/member", "/broken")
        return graph(PAGES)(request)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.stop()


@pytest.fixture
async def members() -> AsyncIterator[tuple[Members, LoopbackServer]]:
    members = Members()
    async with site(members.answer) as server:
        yield members, server


def shoal(folder: Path, *arguments: str, code: int = 0) -> str:
    """A command called in this process; everything it prints."""
    done = call_shoal(folder, *arguments, code=code)
    return f"{done.stdout}\n{done.stderr}"


async def run(folder: Path, *arguments: str) -> str:
    """A run; everything it prints."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "shoal", "run", *arguments),
        cwd=folder,
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), SECONDS)
    except TimeoutError:
        process.terminate()
        raise
    said = f"{out.decode()}\n{err.decode()}"
    assert process.returncode in (0, 1), f"{arguments}: {process.returncode}\n{said}"
    return said


def write_pools(folder: Path, *, ring: list[str], gateway: str) -> None:
    (folder / "ring.txt").write_text("\n".join(ring))
    (folder / "logins.txt").write_text(f"anna:{ACCOUNT_WORD}\nbert:{ACCOUNT_WORD}@&/x\n")
    (folder / "shoal.toml").write_text(
        '[proxies.ring]\nfile = "ring.txt"\nrate = "10/s"\nquarantine = "1s"\n'
        f'[proxies.gate]\nurl = "{gateway}"\ncost = 0.5\n'
        '[accounts.shop]\nfile = "logins.txt"\nrate = "20/s"\n'
    )


# Eight seconds: a fleet through every kind of exit, and then every command that could show a secret.
@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_fleet_shares_its_exits_and_leaves_no_secret_anywhere(
    backend: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    start_proxy: Callable[..., Tinyproxy],
    members: tuple[Members, LoopbackServer],
) -> None:
    truth, server = members
    folder = tmp_path / "crawl"
    folder.mkdir()
    redis: RedisServer | None = request.getfixturevalue("redis") if backend == "redis" else None
    places = ["--frontier", redis.url] if redis else []
    base = f"http://127.0.0.1:{server.port}"
    words = {"token": TOKEN, "proxy_word": PROXY_WORD, "gateway_key": GATEWAY_KEY}
    (folder / "club.py").write_text(SPIDER.format(base=base, **words))
    locked = start_proxy("127.0.0.3", user="anna", password=PROXY_WORD)
    async with (
        Gateway(key=GATEWAY_KEY, address="127.0.0.9") as gateway,
        silent_server("127.0.0.7", hangs=False) as shut,
    ):
        ring = [
            locked.url.replace(PROXY_WORD, WRONG_WORD),
            shut.replace("http://", f"http://anna:{WRONG_WORD}@"),
            f"http://anna:{WRONG_WORD}@127.0.0.8:{free_port()}",
            start_proxy("127.0.0.2", user="anna", password=PROXY_WORD).url,
            locked.url,
        ]
        write_pools(folder, ring=ring, gateway=gateway.template)
        said = await run(folder, "club.py", "--workers", "2", *places)
    commands = [(*command, *places) for command in looking(base)]
    shown = [shoal(folder, *command) for command in [*commands, ("settings", "club.py")]]
    check_what_is_shown(shown, host=f"127.0.0.1:{server.port}")
    shoal(folder, "export", "club", "-o", "out.csv", *places)
    progress = json.loads(shown[0])["progress"]
    check_the_crawl(truth, server, progress)
    outputs = [said, *shown, (folder / "out.csv").read_text()]
    kept = (redis.append_only_file.read_bytes() if redis else b"") + b"".join(
        path.read_bytes() for path in folder.glob("shoal.db*")
    )
    assert "***" in shown[-5]  # of the page whose handler quotes everything
    for word in (PROXY_WORD, WRONG_WORD, GATEWAY_KEY, ACCOUNT_WORD, COOKIE, TOKEN):
        found = [output for output in outputs if any(form in output for form in forms_of(word))]
        assert found == [], word
        # The cookies of a login are the frontier's to keep, and the headers of a dead letter; nothing else is.
        assert any(form.encode() in kept for form in forms_of(word)) == (word in (COOKIE, TOKEN)), word


def looking(base: str) -> list[tuple[str, ...]]:
    """Every command that shows something of a crawl, for people and for scripts."""
    shows = [("status", "club-1"), ("exits", "club-1"), ("dead", "list", "club-1")]
    shows += [("why", f"{base}/{path}") for path in ("blocked", "broken", "quoting")]
    whys = [("why", f"{base}/{path}", "--json") for path in ("0", "gate", "member")]
    return [*((*show, "--json") for show in shows), *shows, *whys]


def check_what_is_shown(shown: list[str], *, host: str) -> None:
    """The exit of each page by its name, and the lane it waited in."""
    first, gate, member = (json.loads(text) for text in shown[-4:-1])
    assert first["fetch"]["exit"].startswith("ring/127.0.0.")
    assert (gate["lane"], gate["fetch"]["exit"][:15]) == (f"{host} via gate", "gate/127.0.0.9:")
    assert (member["lane"], member["fetch"]["exit"]) == (f"{host} via shop", "shop/anna")
    assert "shop/anna" in shown[-6]  # for people, of the broken page


def forms_of(word: str) -> list[str]:
    """A secret as it is, and as it would stand in a header."""
    return [word, base64.b64encode(f"anna:{word}".encode()).decode()]


def check_the_crawl(truth: Members, server: LoopbackServer, progress: dict[str, object]) -> None:
    pages = pages_of(server.requests)
    login, blocked = pages.pop("/login"), pages.pop("/blocked")
    once = ("/gate", "/quoting", "/member", "/broken")
    assert pages == {**dict.fromkeys(once, 1), **{f"/{number}": 1 for number in range(PAGES)}}
    # Once for anna, whoever of the fleet has her, and once for bert, who then rests.
    assert (login, truth.logins) == (2, 2)
    assert truth.cookies == {f"id={COOKIE}"}
    assert 1 <= blocked <= 6  # bad exits took some of its tries
    assert (progress["done"], progress["dead"]) == (PAGES + 2, 3)
    peers = Counter(hit.peer for hit in server.requests)
    # The accounts have no proxy: theirs are the only requests from here.
    assert peers["127.0.0.1"] == login + 2
    assert peers["127.0.0.9"] == 2
    assert peers.keys() == {"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.9"}
    busiest = busiest_by_peer(server.requests)
    # One more than the rate is the start that opens the window, another what a busy machine may delay on the way.
    assert max(busiest["127.0.0.2"], busiest["127.0.0.3"]) <= 12


async def test_the_pace_of_a_host_via_a_pool_is_steered_by_its_own_name(tmp_path: Path) -> None:
    frontier = await open_frontier(str(tmp_path / "shoal.db"))
    try:
        await frontier.open_crawl(Crawl(id="club-1", spider="club", pools=(Pool(name="ring", exits=("ring/x",)),)))
        said = shoal(tmp_path, "pace", "a.test", "2/s")
        assert "shoal pace 'a.test via ring' 2/s club-1" in said
        said = shoal(tmp_path, "pace", "a.test via ring", "2/s")
        assert "a.test via ring at 2/s" in said
        assert "has no pool 'rong', only ring" in shoal(tmp_path, "pace", "a.test via rong", "2/s", code=2)
    finally:
        await frontier.close()
