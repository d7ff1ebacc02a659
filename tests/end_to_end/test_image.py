"""The image of `shoal deploy compose`, built step by step in a Debian root and run as its compose file says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from image_root import Root, build, first_process, why_not

from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.servers.programs import free_port
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import SiteProcess, site_process
from shoal.testing.waiting import wait_until

ROOT = Path(__file__).parents[2]
DEBIAN = ROOT / ".venv" / "debian_root"
PRODUCTS = 60
DATABASE = "image"
SECONDS = 120.0
SPIDER = """
from shoal import Item, Spider

class Books(Spider):
    start = ["{url}catalogue/page-1.html"]
    rate = "15/s"
    settings = {{"allow_private": True, "pace": "fixed"}}

    def parse(self, page):
        yield page.follow("article h3 a", self.book, priority=1)
        yield page.follow("li.next a")

    def book(self, page):
        yield Item(key=page.text("tr:nth-child(1) td"), title=page.text("h1"))
"""
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(bool(why_not(DEBIAN / "root")), reason=why_not(DEBIAN / "root")),
]


class Fleet(NamedTuple):
    root: Root
    folder: Path
    variables: dict[str, str]

    def start(self, *words: str) -> subprocess.Popen[str]:
        return self.root.container(["shoal", *words], self.variables, secrets=self.folder / "secrets")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteProcess]:
    log = tmp_path_factory.mktemp("site") / "hits.jsonl"
    with site_process("--products", str(PRODUCTS), "--hosts", "127.0.0.1", log=log) as running:
        yield running


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, shop: SiteProcess, redis: RedisServer, postgres: PostgresServer
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("image")
    (folder / "books.py").write_text(SPIDER.format(url=shop.url))
    command = [sys.executable, "-m", "shoal", "deploy", "compose", "fleet", "--spider", "books.py"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    context = folder / "fleet"
    shutil.copytree(DEBIAN / "wheels", context / "wheels", dirs_exist_ok=True)
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*wheel, "--wheel-dir", str(context / "wheels"), str(ROOT)], check=True, capture_output=True)
    url = urlsplit(postgres.new_database(DATABASE))
    (context / "secrets" / "postgres_password").write_text(unquote(url.password or ""))
    redis.call("CONFIG", "SET", "requirepass", (context / "secrets" / "redis_password").read_text().strip())
    variables = {
        "SHOAL_FRONTIER": redis.url,
        "SHOAL_FRONTIER_PASSWORD_FILE": "/run/secrets/redis_password",
        "SHOAL_STORE": url._replace(netloc=f"{url.username}@{url.hostname}:{url.port}").geturl(),
        "SHOAL_STORE_PASSWORD_FILE": "/run/secrets/postgres_password",
    }
    yield Fleet(build(context, base=DEBIAN / "root", target="worker", folder=folder), context, variables)
    shutil.rmtree(folder)


# Half a minute: copies of a Debian root, shoal installed in one of them, and a crawl. It shows that the image works.
def test_a_fleet_of_the_image_crawls_and_a_worker_stops_cleanly_in_the_middle(
    fleet: Fleet, postgres: PostgresServer
) -> None:
    port = free_port()
    services = yaml.safe_load((fleet.folder / "compose.yaml").read_text())["services"]
    # Another port than the container's own: its network is that of this machine here.
    worker = fleet.start(*(word.replace(":9100", f":{port}") for word in services["worker"]["command"]))
    crawl = fleet.start(*services["crawl"]["command"])
    stop_seconds = int(services["worker"]["stop_grace_period"].removesuffix("s"))
    try:
        wait_until(lambda: pages_of(fleet, port) >= 5, otherwise="the worker in the image does no pages", seconds=30)
        uid = Path(f"/proc/{first_process(worker)}/status").read_text().split("Uid:\t")[1].split()[0]
        assert uid == "10001"
        asked = time.monotonic()
        os.kill(first_process(worker), signal.SIGTERM)
        said, _ = worker.communicate(timeout=stop_seconds)
        assert worker.returncode == 0, said
        assert time.monotonic() - asked < stop_seconds
        told, _ = crawl.communicate(timeout=SECONDS)
        assert crawl.returncode == 0, told
    finally:
        worker.kill()
        crawl.kill()
    assert postgres.call("SELECT count(*) FROM shoal.items", database=DATABASE).strip() == str(PRODUCTS)
    shown = fleet.start("status", "books-1", "--json")
    out, _ = shown.communicate(timeout=SECONDS)
    status = json.loads(out)
    assert status["state"] == "finished", out
    # Handed back, not lost: nobody had to wait for a lease to run out.
    lost = [count for name, count in every_count(status) if name in ("lost", "leases_lost")]
    assert lost == [0], out


def every_count(value: Any) -> Iterator[tuple[str, Any]]:
    """Names and values, at any depth."""
    for name, one in value.items() if isinstance(value, dict) else ():
        yield name, one
        yield from every_count(one)


def pages_of(fleet: Fleet, port: int) -> int:
    """Pages that the worker says it has fetched, read by the image's own Python."""
    url = f"http://127.0.0.1:{port}/metrics"
    code = f"from urllib.request import urlopen; print(urlopen('{url}', timeout=4).read().decode())"
    done = subprocess.run(fleet.root.command(["python", "-c", code]), capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("shoal_fetches_total{")]
    return int(sum(float(line.split()[-1]) for line in lines))


def test_a_container_of_the_image_can_write_nowhere_but_to_its_own_tmp(fleet: Fleet) -> None:
    paths = "/app /app/shoal-logs /opt/shoal /etc /run/secrets /tmp"
    script = f"for path in {paths}; do touch $path/x 2>/dev/null && echo $path; done; true"
    shell = fleet.root.container(["sh", "-c", script], {}, secrets=fleet.folder / "secrets")
    out, _ = shell.communicate(timeout=SECONDS)
    assert (shell.returncode, out.split()) == (0, ["/tmp"])
