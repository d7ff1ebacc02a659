"""Several hosts for real: network namespaces on one switch, Redis in one, workers in others, and a cut cable."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_fleet import SECONDS, RedisFleet, ended

from shoal.testing.servers.programs import find_program
from shoal.testing.sites.site_process import site_process
from shoal.testing.waiting import wait_until

pytestmark = pytest.mark.full

PAGES = 160
RATE = 25
LEASE_SECONDS = 2.0
SITE = "10.86.0.1"
WORKERS = ("10.86.0.2", "10.86.0.3")
SPIDER = f"""
import asyncio

from shoal import Item, Spider

class Graph(Spider):
    start = ["{{url}}"]
    rate = "{RATE}/s"
    settings = {{{{
        "allow_private": True, "obey_robots": False, "pace": "fixed", "per_host": 64,
        "lease_seconds": {LEASE_SECONDS}, "max_attempts": 20, "total_seconds": 20.0,
    }}}}

    async def parse(self, page):
        await asyncio.sleep(0.5)  # so that pages are in hand when the cable is cut
        yield Item(key=page.url, number=page.text("h1"))
        yield page.follow("a")
"""


REGIONAL = """
from shoal import Item, Spider

class Graph(Spider):
    start = ["{url}"]
    rate = "80/s"
    settings = {{"allow_private": True, "obey_robots": False, "pace": "fixed", "per_host": 64, "first_byte_seconds": 1}}

    def parse(self, page):
        yield Item(key=page.url, number=page.text("h1"))
        for request in page.follow("a"):
            is_regional = int(request.url.rpartition("/")[2]) % 3 == 0
            # A page of the region finds others: without a pool these would keep its region.
            request.region, request.pool = ("eu", None) if is_regional else (None, "direct")
            yield request
"""


class Network:
    """Hosts on one switch, all of them namespaces of their own: nothing of the machine's network is touched."""

    def __init__(self) -> None:
        self._program = shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin")
        self._switch = self._namespace("switch")
        self._made: list[str] = []

    def open(self) -> None:
        """Make the switch, or say why this machine cannot."""
        if os.geteuid() != 0:
            pytest.skip("network namespaces need root")
        if self._program is None:
            self._refuse("ip is not installed: apt-get install iproute2")
        self._sweep()
        try:
            self._add(self._switch)
            self._ip("-n", self._switch, "link", "add", "bridge", "type", "bridge", "forward_delay", "0")
            self._ip("-n", self._switch, "link", "set", "bridge", "up")
        except subprocess.CalledProcessError as error:
            self._refuse(f"this machine lets nobody make network namespaces: {error.stderr.strip()}")

    def host(self, address: str) -> tuple[str, ...]:
        """A host with this address; gives what a command begins with to run there."""
        name, port = self._namespace(address), _port(address)
        self._add(name)
        self._ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        self._ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
        self._ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            self._ip("-n", name, "link", "set", link, "up")
        return (str(self._program), "netns", "exec", name)

    def add_address(self, host: str, address: str) -> None:
        """Give one more address to the host with this one."""
        self._ip("-n", self._namespace(host), "address", "add", f"{address}/24", "dev", "eth0")

    def take_address(self, host: str, address: str) -> None:
        """Take an address from a host that was given it."""
        self._ip("-n", self._namespace(host), "address", "delete", f"{address}/24", "dev", "eth0")

    @contextlib.contextmanager
    def cut(self, address: str) -> Iterator[None]:
        """Pull the host's cable out of the switch."""
        self._ip("-n", self._switch, "link", "set", _port(address), "down")
        try:
            yield
        finally:
            self._ip("-n", self._switch, "link", "set", _port(address), "up")

    def close(self) -> None:
        for name in self._made:
            subprocess.run([str(self._program), "netns", "delete", name], check=False, capture_output=True)

    def _add(self, name: str) -> None:
        self._ip("netns", "add", name)
        self._made.append(name)

    def _ip(self, *arguments: str) -> str:
        command = [str(self._program), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS).stdout

    def _sweep(self) -> None:
        """Delete the namespaces of test runs that were killed."""
        for name, pid in re.findall(r"^(shoal-(\d+)-\S+)", self._ip("netns", "list"), re.MULTILINE):
            if not Path(f"/proc/{pid}").exists():
                self._ip("netns", "delete", name)

    def _refuse(self, reason: str) -> None:
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)

    @staticmethod
    def _namespace(name: str) -> str:
        return f"shoal-{os.getpid()}-{name}"


def _port(address: str) -> str:
    return f"port{address.rpartition('.')[2]}"


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    try:
        network.open()
        yield network
    finally:
        network.close()


@contextlib.contextmanager
def redis_at(host: tuple[str, ...], address: str, folder: Path) -> Iterator[str]:
    """Redis on that host, and on a socket of the shared file system for the test itself."""
    folder.mkdir()
    socket = folder / "redis.sock"
    command = [
        *host, find_program("redis-server"), "--bind", address, "--port", "6379", "--protected-mode", "no",
        "--unixsocket", str(socket), "--dir", str(folder), "--appendonly", "yes", "--save", "",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            wait_until(socket.exists, otherwise="redis-server made no socket")
            yield f"unix://{socket}"
        finally:
            server.kill()


@pytest.fixture
def fleet(network: Network, tmp_path: Path) -> Iterator[RedisFleet]:
    host = network.host(SITE)
    with (
        redis_at(host, SITE, tmp_path / "redis") as url,
        site_process("--graph", str(PAGES), "--hosts", SITE, log=tmp_path / "hits.jsonl", prefix=host) as site,
    ):
        (tmp_path / "graph.py").write_text(SPIDER.format(url=site.url))
        fleet = RedisFleet(tmp_path, site, url)
        try:
            yield fleet
        finally:
            fleet.end()


# Eight seconds: the leases of a worker run out behind a cut cable, and its late results are refused.
def test_a_worker_cut_off_for_longer_than_its_lease_changes_nothing_when_it_is_back(
    network: Network, fleet: RedisFleet
) -> None:
    there = f"redis://{SITE}:6379/0"
    steady, unlucky = (network.host(address) for address in WORKERS)
    run = fleet.start("run", "graph.py", prefix=steady, frontier=there)
    fleet.wait_for_pages(5)
    # Paused, so that enough pages are left for the second worker, however long its start takes.
    fleet.shoal("pause", fleet.crawl)
    worker = fleet.start("worker", "graph.py", "--burst", prefix=unlucky, frontier=there)
    fleet.wait_for_workers(2)
    fleet.shoal("resume", fleet.crawl)
    fleet.wait_for_worker(worker)
    with network.cut(WORKERS[1]):
        before = fleet.progress()
        # All its leases run out, also those it took just before the cut; the other worker goes on with their pages.
        until = time.monotonic() + 2 * LEASE_SECONDS
        fleet.wait_for(
            lambda during: during.lost > before.lost and during.done > before.done and time.monotonic() > until
        )
    for process in (run, worker):
        _, err, code = ended(process)
        assert code == 0, err
    progress = fleet.check(PAGES)
    assert progress.stale > 0
    assert progress.lost >= progress.stale
    assert len(fleet.fetches()) == PAGES


@contextlib.contextmanager
def proxy_at(host: tuple[str, ...], *, leaving_from: str, folder: Path) -> Iterator[str]:
    """A proxy that listens on the loopback of that host: nobody else can connect to it."""
    config = folder / "tinyproxy.conf"
    config.write_text(f"Port 3128\nListen 127.0.0.1\nBind {leaving_from}\nTimeout 20\nMaxClients 100\n")
    dial = [*host, sys.executable, "-c", "import socket; socket.create_connection(('127.0.0.1', 3128))"]
    with subprocess.Popen([*host, find_program("tinyproxy"), "-d", "-c", str(config)], stdout=subprocess.DEVNULL) as it:
        try:
            wait_until(lambda: subprocess.run(dial, capture_output=True).returncode == 0, otherwise="no tinyproxy")
            yield "http://127.0.0.1:3128"
        finally:
            it.kill()


# Seven seconds: hosts of which one has addresses and a proxy that no other one can use. One address is lost on the way.
def test_only_the_host_that_has_exits_sends_the_requests_of_their_region(
    network: Network, fleet: RedisFleet, tmp_path: Path
) -> None:
    there, own, proxied = f"redis://{SITE}:6379/0", "10.86.0.13", "10.86.0.14"
    plain, special = (network.host(address) for address in WORKERS)
    for address in (own, proxied):
        network.add_address(WORKERS[1], address)
    (tmp_path / "graph.py").write_text(REGIONAL.format(url=fleet.site.url))
    with proxy_at(special, leaving_from=proxied, folder=tmp_path) as proxy:
        (tmp_path / "own.toml").write_text(f'[exits.own]\nurls = ["bind:{own}", "{proxy}"]\nregion = "eu"\n')
        run = fleet.start("run", "graph.py", prefix=plain, frontier=there)
        fleet.wait_for_pages(5)
        stranger = fleet.start("worker", "graph.py", "--exits", "own.toml", prefix=plain, frontier=there)
        _, refused, code = ended(stranger)
        assert (code, f"does not have the address {own}: it has {WORKERS[0]}, 127.0.0.1" in refused) == (2, True)
        worker = fleet.start("worker", "graph.py", "--burst", "--exits", "own.toml", prefix=special, frontier=there)
        wait_until(lambda: any(hit.peer == own for hit in fleet.site.hits()), otherwise=f"nothing left from {own}")
        network.take_address(WORKERS[1], own)
        for process in (run, worker):
            _, err, code = ended(process)
            assert code == 0, err
        assert f"is down: this machine does not have the address {own} any more" in err
    fleet.check(PAGES)
    peers = {number_of(hit.path): hit.peer for hit in fleet.site.hits()}
    regional = {peer for number, peer in peers.items() if number and number % 3 == 0}
    assert regional == {own, proxied}
    assert {peer for number, peer in peers.items() if not number or number % 3} <= {*WORKERS}


def number_of(path: str) -> int:
    return int(path.rpartition("/")[2])
