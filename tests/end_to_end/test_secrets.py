"""Secrets of a spider and of its operator: they reach the site they are for, and nothing that people get to see."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli.main import shoal
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.hostile import HostileSite, answer

SECONDS = 120.0
HEADER, COOKIE, TOKEN = "planted-header-1f3a", "planted-cookie-77b0", "planted-environment-c41d"
USERINFO, LOCATION, PASSWORD = "planted-userinfo-9e2c", "planted-location-5d60", "planted-password-e8f4"
FOR_THE_SITE = (HEADER, COOKIE, TOKEN)
SECRETS = (*FOR_THE_SITE, USERINFO, LOCATION, PASSWORD)
SPIDER = """
import os

from shoal import Item, Request, Spider

AUTH = {{"Authorization": "Bearer {header}", "Cookie": "visit={cookie}", "X-Api-Key": os.environ["SITE_TOKEN"]}}


class Keeper(Spider):
    name = "keeper"
    start = [Request(url, headers=AUTH, body=b"{cookie}" if "post" in url else None) for url in {start!r}]
    settings = {settings!r}

    def parse(self, page):
        yield Item(key=page.url, title=page.text("title"))
        if page.url.endswith("/http10"):
            raise RuntimeError("broken on purpose")
        if not page.url.startswith({own!r}):
            return
        yield page.follow(headers=AUTH)
        yield from page.follow("a", headers=AUTH, dedup=False, depth=9)
"""
SETTINGS = {
    "allow": ["*"],
    "allow_addresses": ["127.0.1.1", "127.0.1.2"],
    "obey_robots": False,
    "pace": "fixed",
    "rate": "unlimited",
    "max_attempts": 2,
    "max_depth": 9,
    "retry_seconds": 0.05,
    "first_byte_seconds": 1.0,
}


class Shell:
    """Runs commands and keeps all that they print."""

    def __init__(self, frontier: str) -> None:
        self.frontier = frontier
        self.printed: dict[str, str] = {}

    async def __call__(self, *arguments: str, places: bool = True, code: int = 0) -> str:
        """Run a command, which must end with this return code; what it printed."""
        store = [] if arguments[0] in ("dead", "add") else ["--store", "items.db"]
        command = [*arguments, "--frontier", self.frontier, *store] if places else list(arguments)
        run = self._process if arguments[0] == "run" else self._here
        printed, ended_with = await run(command)
        assert ended_with == code, f"{arguments}: {ended_with}\n{printed}"
        self.printed[" ".join(arguments)] = printed
        return printed

    async def _process(self, command: list[str]) -> tuple[str, int | None]:
        """In a process of its own, which has others below it."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal", *command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate()
        return output.decode(), process.returncode

    async def _here(self, command: list[str]) -> tuple[str, int]:
        result = await asyncio.to_thread(CliRunner().invoke, shoal, command)
        return result.output + result.stderr + repr(result.exception), result.exit_code


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis").start()
    server.call("ACL", "SETUSER", "me", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    yield server
    server.kill()


def urls_of(own: HostileSite, other: HostileSite) -> list[str]:
    """Pages of the first site that lead to the second one in every way there is, and pages that fail."""
    with_password = other.url("/ok?userinfo").replace("//", f"//user:{LOCATION}@")
    links = [
        own.url("/ok?linked"),
        other.url("/ok?linked"),
        f"//{other.host}:{other.port}/ok?schemeless",
        with_password,
    ]
    own.pages = {
        "/links": answer("".join(f"<a href='{url}'>there</a>" for url in links).encode()),
        "/moved/here": moved(own.url("/ok?moved")),
        "/moved/away": moved(other.url("/ok?moved")),
        "/moved/with-password": moved(with_password),
        "/moved/to-ftp": moved(f"ftp://user:{LOCATION}@{own.host}/"),
    }
    return [own.url(path) for path in (*own.pages, "/503", "/503?post", "/slow-headers", "/http10")]


def moved(target: str) -> bytes:
    return answer(status="302 Found", headers=f"Location: {target}\r\n")


# Seven seconds: a crawl with a secret in every place that can hold one, and every command that prints something of it.
async def test_secrets_reach_their_site_and_nothing_else(
    tmp_path: Path, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SITE_TOKEN", TOKEN)
    frontier = redis.url.replace("//", f"//me:{PASSWORD}@")
    shell = Shell(frontier)
    async with HostileSite(host="127.0.1.1") as own, HostileSite(host="127.0.1.2") as other:
        start = urls_of(own, other)
        for name, urls in (("wrong.py", [f"http://user:{USERINFO}@{other.host}/"]), ("keeper.py", start)):
            text = SPIDER.format(header=HEADER, cookie=COOKIE, start=urls, settings=SETTINGS, own=own.url("/"))
            (tmp_path / name).write_text(text)
        assert "user name or password" in await shell("run", "wrong.py", code=2)
        assert "finished" in await shell("run", "keeper.py", "--workers", "2")
        await shell("dead", "requeue", "keeper-1", "--reason", "http_503")
        for json in ([], ["--json"]):
            for command in (["status"], ["status", "keeper-1"], ["dead", "list"], ["settings", "keeper.py"]):
                await shell(*command, *json, places=command[0] != "settings")
            for url in (*start, own.url("/ok?linked"), other.url("/ok?moved"), other.url("/ok?userinfo")):
                await shell("why", url, *json)
        await shell("dead", "list", "-v")
        await shell("top")
        for url in (f"https://user:{USERINFO}@example.com/", f"user:{USERINFO}@exa mple"):
            await shell("add", "keeper-1", url, code=2)
        for name in ("a.jsonl", "a.csv", "a.json"):
            await shell("export", "keeper-1", "-o", name)
            shell.printed[name] = (tmp_path / name).read_text()
    assert_it_says_much(shell.printed)
    leaks = {(what, secret) for what, text in shell.printed.items() for secret in SECRETS if secret in text}
    assert leaks == set()
    sent_home, sent_away = b"".join(own.requests).decode(), b"".join(other.requests).decode()
    assert all(secret in sent_home for secret in FOR_THE_SITE)
    assert not any(secret in sent_away for secret in SECRETS)
    assert "?moved" in sent_away
    assert "?linked" in sent_away
    assert "?schemeless" in sent_away


def assert_it_says_much(printed: dict[str, str]) -> None:
    whole = "\n".join(printed.values())
    for word in ("http_503", "timeout_first_byte", "broken on purpose", "redirects to", "Authorization", "keeper-1"):
        assert word in whole, f"nothing tells of {word}"
