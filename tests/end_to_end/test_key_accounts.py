"""Accounts that are headers: each key within its limit for the whole fleet, sent to its hosts alone, shown nowhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from crawl_commands import Commands, ended
from exit_crawl import site

from shoal.archive import open_archive
from shoal.testing.sites.loopback import LoopbackServer, Reply, Request, reply

PAGES = 16
RATE = 4
KEYS = {"anna": "k3y-0f-anna-4711", "bert": "k3y-0f-bert-4711"}
REVOKED = "k3y-0f-carl-4711"  # the site takes it for a stranger's
SPIDER = """
from shoal import Item, Spider


class Api(Spider):
    name = "api"
    start = "{url}/0"
    pool = "api"
    allow_private = True
    max_attempts = 1
    allow = ["{url}/", "{other}/"]

    def parse(self, page):
        if page.url.endswith("/broken"):
            raise ValueError(f"{{page.task}} was asked for with {{page.text('pre')}}")
        yield Item(key=page.url)
        yield page.follow("a")
"""


class Api:
    """A site that wants a key for every page, and the site of somebody else to which one of its pages redirects."""

    def __init__(self) -> None:
        self.strangers: list[str] = []
        self.robots: set[str | None] = set()
        self.times: dict[str, list[float]] = {key: [] for key in KEYS.values()}
        self.elsewhere: list[tuple[str, str | None]] = []
        self.other = ""

    def answer(self, request: Request) -> Reply:
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        if request.path == "/robots.txt":
            self.robots.add(request.headers.get("authorization"))
            return reply("User-agent: *\nAllow: /", kind="text/plain")
        if key not in KEYS.values():
            self.strangers.append(key)
            return reply("no key", status=401)
        self.times[key].append(time.monotonic())
        if request.path == "/away":
            return reply("", status=302, headers={"Location": f"{self.other}/theirs"})
        if request.path == "/broken":
            return reply(f"<pre>Bearer {key}</pre>")
        more = ["away", "broken", *range(1, PAGES)]
        return reply("".join(f'<a href="/{one}">x</a>' for one in more) if request.path == "/0" else "<p>")

    def answer_elsewhere(self, request: Request) -> Reply:
        self.elsewhere.append((request.path, request.headers.get("authorization")))
        return reply("<p>")


@pytest.fixture
async def api() -> AsyncIterator[tuple[Api, LoopbackServer]]:
    api = Api()
    async with site(api.answer) as server, site(api.answer_elsewhere) as other:
        api.other = f"http://127.0.0.1:{other.port}"
        yield api, server


@pytest.fixture
def commands(tmp_path: Path, frontier: str, api: tuple[Api, LoopbackServer]) -> Iterator[Commands]:
    truth, server = api
    folder, url = tmp_path / "crawl", f"http://127.0.0.1:{server.port}"
    folder.mkdir()
    (folder / "api.py").write_text(SPIDER.format(url=url, other=truth.other))
    logins = "".join(
        f'  {{name = "{name}", headers = {{ Authorization = "Bearer {key}" }}}},\n'
        for name, key in {"carl": REVOKED, **KEYS}.items()
    )
    table = f'[accounts.api]\nhosts = ["{url}"]\nrate = "{RATE}/s"\nlogins = [\n{logins}]\n'
    (folder / "shoal.toml").write_text(table)
    commands = Commands(folder, frontier)
    yield commands
    commands.close()


def most_within_a_second(times: list[float]) -> int:
    return max(sum(0 <= other - one < 1.0 for other in times) for one in times)


def files_in(folder: Path) -> list[bytes]:
    """What lies in the folder, but for the file that the keys were written into, and the archive."""
    files = [path for path in folder.rglob("*") if path.is_file() and "pages" not in path.parts]
    return [path.read_bytes() for path in files if path.name != "shoal.toml"]


async def told_by_archive(folder: Path) -> list[bytes]:
    """What the archive tells of its pages; their bodies are what the site said."""
    archive = await open_archive(str(folder))
    try:
        found = [msgspec.json.encode(capture) async for some in archive.scan("api-1") for capture in some]
    finally:
        await archive.close()
    assert len(found) > PAGES
    return found


# Six seconds: sixteen pages at the rate of two keys, then every command that could show a key.
async def test_keys_keep_their_limit_go_to_their_hosts_alone_and_are_shown_nowhere(
    commands: Commands, api: tuple[Api, LoopbackServer], tmp_path: Path
) -> None:
    truth, server = api
    logs = ("--log-level", "debug", "--log-format", "json")
    run, run_log = commands.start("run", "api.py", "--archive", "pages", "--workers", "2", *logs)
    assert await ended(run) == 0, run_log.read_text()
    asked = Counter(hit.path for hit in server.requests if hit.path != "/robots.txt" and hit.status != 401)
    assert asked == {"/0": 1, "/away": 1, "/broken": 1, **{f"/{number}": 1 for number in range(1, PAGES)}}
    assert truth.robots == {None}
    # Quarantined by the first answers that it got: those that were on their way together.
    assert (set(truth.strangers), len(truth.strangers) <= RATE) == ({REVOKED}, True)
    assert ("/theirs", None) in truth.elsewhere
    assert {key for _, key in truth.elsewhere} == {None}
    # One more than the rate is the start that opens the window, another what a busy machine may delay on the way.
    assert {key: most_within_a_second(times) <= RATE + 2 for key, times in truth.times.items()} == dict.fromkeys(
        KEYS.values(), True
    )
    looks = [("status", "api-1"), ("exits", "api-1"), ("dead", "list", "api-1")]
    looks += [("why", f"http://127.0.0.1:{server.port}/broken")]
    shown = [
        commands.done(*look, *form, has_store=look[0] in ("status", "why"))
        for look in looks
        for form in ((), ("--json",))
    ]
    assert "api/anna" in shown[2]
    assert "***" in shown[-1]
    told = await told_by_archive(tmp_path / "crawl" / "pages")
    for key in (*KEYS.values(), REVOKED):
        assert [text for text in ["".join(shown).encode(), *told, *files_in(tmp_path)] if key.encode() in text] == []
