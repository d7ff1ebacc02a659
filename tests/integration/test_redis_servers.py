"""The ways to a Redis server: TLS, passwords that nobody gets to read, and sentinels that name another master."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme

from shoal.errors import ServerUnreachable, ShoalError, UsageError
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.model import Crawl, Done, Lease, TaskState
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.servers.programs import free_port
from shoal.testing.servers.redis_sentinels import RedisSentinels, start_sentinel
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.waiting import eventually
from shoal.worker.outages import until_reachable

CRAWL = "books"
PASSWORD = "s3cr3t/w@rd"
SHOWN = "s3cr3t"


class TlsServer:
    """A server that speaks TLS, and the CA that vouches for it."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1", "localhost")
        self.authority, key, chain = folder / "ca.pem", folder / "key.pem", folder / "chain.pem"
        authority.cert_pem.write_to_path(self.authority)
        certificate.private_key_pem.write_to_path(key)
        certificate.cert_chain_pems[0].write_to_path(chain)
        self.settings = {
            "tls-cert-file": str(chain), "tls-key-file": str(key), "tls-ca-cert-file": str(self.authority),
            "tls-auth-clients": "no", "tls-replication": "yes",
        }  # fmt: skip
        self.port = free_port()
        options = [word for name, value in self.settings.items() for word in (f"--{name}", value)]
        self.plain = RedisServer(folder / "redis", "--tls-port", str(self.port), *options).start()
        self.plain.call("ACL", "SETUSER", "me", "on", f">{PASSWORD}", "~*", "&*", "+@all")

    def url(self, authority: Path | None = None, *, password: str = PASSWORD) -> str:
        return f"rediss://me:{quote(password, safe='')}@127.0.0.1:{self.port}/0" + (
            f"?ssl_ca_certs={authority}" if authority else ""
        )


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    server = TlsServer(tmp_path_factory.mktemp("tls"))
    yield server
    server.plain.kill()


async def refusal(url: str) -> ShoalError:
    """The error of opening this URL: one line, without the password."""
    with pytest.raises(ShoalError) as caught:
        await open_frontier(url)
    line = str(caught.value)
    assert "\n" not in line
    for secret in (PASSWORD, quote(PASSWORD, safe=""), SHOWN):
        assert secret not in line
    assert caught.value.__cause__ is None
    await asyncio.sleep(0.05)  # the driver closes a TLS connection in the background, and gives nothing to wait for
    return caught.value


async def test_connects_with_tls_to_a_server_whose_authority_is_given(tls: TlsServer) -> None:
    frontier = await open_frontier(tls.url(tls.authority))
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0))
    assert (await frontier.put(CRAWL, [make_task(number) for number in range(500)])).new == 500
    assert len((await frontier.lease([CRAWL], 8, worker="w", seconds=60.0, horizon=1.0)).leases) == 8
    await frontier.close()


async def test_says_at_once_that_a_port_does_not_speak_tls(tls: TlsServer) -> None:
    error = await refusal(tls.url(tls.authority).replace(f":{tls.port}/", f":{tls.plain.port}/"))
    assert isinstance(error, UsageError)
    assert f"rediss://me:***@127.0.0.1:{tls.plain.port}/0 does not speak TLS on this port" in str(error)


async def test_refuses_a_server_whose_authority_is_unknown(tls: TlsServer) -> None:
    error = await refusal(tls.url())
    assert isinstance(error, UsageError)
    assert "is not trusted: name its CA with ?ssl_ca_certs=" in str(error)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("rediss://me:{}@127.0.0.1:1/0", "cannot reach Redis at rediss://me:***@127.0.0.1:1/0"),
        ("redis://me:{}@127.0.0.1:port/0", "Port could not be cast"),
        ("redis://127.0.0.1:1/0?password={}&sharks=3", "an option that is not known"),
        ("redis://me:{}@127.0.0.1:1/0?db=many", "Invalid value for 'db'"),
        (
            "redis+sentinel://me:{}@127.0.0.1:1,127.0.0.1:2/mymaster?sentinel_password={}",
            "cannot reach Redis at redis+sentinel://me:***@",
        ),
        ("redis+sentinel://me:{}@127.0.0.1:1", "names no sentinel or no master"),
        ("redis+cluster://me:{}@127.0.0.1:1", "cannot reach Redis at redis+cluster://me:***@127.0.0.1:1"),
        ("redis+cluster://me:{}@127.0.0.1:1/3", "names a database"),
        ("redis+cluster://me:{}@/", "names no node of a cluster"),
        ("redis://me:{}@127.0.0.1:1/0?shards=many", "shards is a number"),
        ("redis+what://me:{}@127.0.0.1:1", "no frontier for redis+what://"),
        ("redis://me:{}@127.0.0.1\u2100:1/0", "is not a Redis URL"),
    ],
)
async def test_no_error_shows_a_password(url: str, complaint: str) -> None:
    assert complaint in str(await refusal(url.replace("{}", quote(PASSWORD, safe=""))))


@pytest.mark.parametrize("character", "/?#")
async def test_a_password_that_is_not_escaped_is_refused_unseen(character: str) -> None:
    error = await refusal(f"redis://me:{SHOWN}{character}1234@127.0.0.1:1/0")
    assert str(error).startswith("redis://me:***@127.0.0.1:1/0 is not a Redis URL: write / ?")
    assert "1234" not in str(error)


async def test_no_log_line_shows_a_password(tls: TlsServer, caplog: pytest.LogCaptureFixture) -> None:
    tls.plain.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with caplog.at_level(logging.DEBUG):
        frontier = await open_frontier(tls.url(tls.authority))
        await frontier.open_crawl(Crawl(id="logged", spider="s"))
        await frontier.close()
        assert "refuses us" in str(await refusal(tls.url(tls.authority, password=f"{SHOWN}-wrong")))
    tls.plain.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert f"rediss://me:***@127.0.0.1:{tls.port}/0" in caplog.text
    assert SHOWN not in caplog.text


async def test_finds_a_master_with_tls_and_passwords_on_the_way(tls: TlsServer, tmp_path: Path) -> None:
    port = free_port()
    monitor = f"sentinel monitor mymaster 127.0.0.1 {tls.port} 1"
    own = ["port 0", f"tls-port {port}", "requirepass s3cr3t-of-sentinels"]
    sentinel = start_sentinel(
        tmp_path / "sentinel", [*own, *(f"{name} {value}" for name, value in tls.settings.items()), monitor]
    )
    url = f"{tls.url(tls.authority)}&sentinel_password=s3cr3t-of-sentinels"
    url = url.replace("rediss://", "rediss+sentinel://").replace(f":{tls.port}/", f":{port}/mymaster/")
    said: list[str] = []
    try:
        async with asyncio.timeout(60.0):
            frontier = await until_reachable(lambda: open_frontier(url), say=said.append)
            assert isinstance(await frontier.crawls(), list)
            await frontier.close()
        assert "refuses us" in str(await refusal(url.replace("of-sentinels", "of-nobody")))
    finally:
        sentinel.kill()
        sentinel.wait()
    assert SHOWN not in "".join(said)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisSentinels]:
    watched = RedisSentinels(tmp_path_factory.mktemp("watched"))
    yield watched
    watched.kill()


async def take(frontier: Frontier, *, seconds: float = 60.0) -> list[Lease]:
    """The first leases after a failover: the lanes rest for a horizon before they lend."""

    async def lease() -> list[Lease]:
        return (await frontier.lease([CRAWL], 10, worker="w", seconds=seconds, horizon=1.0)).leases

    return await eventually(lambda: until_reachable(lease, say=str), pause=0.05)


# Five seconds: sentinels find each other by a message that they send every two seconds.
async def test_a_master_that_no_sentinel_knows_is_named(watched: RedisSentinels) -> None:
    await asyncio.to_thread(watched.wait)
    with pytest.raises(ServerUnreachable, match="name no master 'other'"):
        await open_frontier(watched.url.replace("mymaster", "other"))


async def test_a_crawl_goes_on_when_the_sentinels_name_another_master(watched: RedisSentinels) -> None:
    async with asyncio.timeout(30.0):
        await asyncio.to_thread(watched.wait)
        frontier = await until_reachable(lambda: open_frontier(watched.url), say=lambda _: None)
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=100))
        await frontier.put(CRAWL, [make_task(number) for number in range(30)])
        done, held = await take(frontier), await take(frontier)
        await frontier.settle([Done(lease=lease, found=[make_task(100 + lease.task.key)]) for lease in done])
        epoch = (await frontier.progress(CRAWL)).epoch
        assert watched.master.call("WAIT", 1, 5000) == 1

        watched.master.kill()
        report = await until_reachable(
            lambda: frontier.settle([Done(lease=lease) for lease in held]), say=lambda _: None
        )
        assert report.stale == []
        assert report.epoch > epoch
        progress = await frontier.progress(CRAWL)
        assert (progress.done, progress.queued) == (20, 20)
        left = {lease.task.key for _ in range(2) for lease in await take(frontier)}
        assert left == {*range(20, 30), *range(100, 110)}
        assert watched.replica.call("ROLE")[0] == b"master"
        assert (await frontier.look_up(CRAWL, 5)).state == TaskState.DONE
        await frontier.close()
