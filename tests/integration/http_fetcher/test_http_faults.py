"""What a site or this machine does wrong, and the name of the fault that comes of it."""

from __future__ import annotations

import asyncio
import socket

import msgspec
import pytest
from fetch_checks import SETTINGS, fault, fetched

from shoal.fetch.base import FaultKind, Fetch
from shoal.fetch.http import HttpFetcher
from shoal.testing.few_files import few_files
from shoal.testing.sites.hostile import HostileSite
from shoal.testing.waiting import eventually

HASTY = msgspec.structs.replace(SETTINGS, first_byte_seconds=0.2, idle_seconds=0.2, total_seconds=0.6)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/slow-headers", FaultKind.TIMEOUT_FIRST_BYTE),
        ("/endless-headers", FaultKind.TIMEOUT_FIRST_BYTE),
        ("/endless-continue", FaultKind.TIMEOUT_FIRST_BYTE),
        ("/stall", FaultKind.TIMEOUT_IDLE),
        ("/drip", FaultKind.TIMEOUT_TOTAL),
        ("/endless-tiny-chunks", FaultKind.TIMEOUT_TOTAL),
    ],
)
async def test_waits_no_longer_than_each_deadline(site: HostileSite, path: str, kind: FaultKind) -> None:
    fetcher = HttpFetcher(HASTY)
    found = await fault(fetcher, site.url(path))
    assert found.kind is kind, found
    await fetcher.close()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/endless", FaultKind.TOO_LARGE),
        ("/nested", FaultKind.TOO_LARGE),
        ("/short", FaultKind.TRUNCATED),
        ("/reset-in-body", FaultKind.TRUNCATED),
        ("/chunked/cut", FaultKind.TRUNCATED),
        ("/chunked/garbage", FaultKind.PROTOCOL),
        ("/headers/huge", FaultKind.PROTOCOL),
        ("/headers/many", FaultKind.PROTOCOL),
        ("/headers/broken", FaultKind.PROTOCOL),
        ("/lengths/different", FaultKind.PROTOCOL),
        ("/http09", FaultKind.PROTOCOL),
        ("/garbage", FaultKind.PROTOCOL),
        ("/close", FaultKind.CONNECT),
        ("/reset", FaultKind.CONNECT),
        ("/bomb/gzip", FaultKind.TOO_LARGE),
        ("/bomb/members", FaultKind.BAD_ENCODING),
        ("/bomb/deflate", FaultKind.TOO_LARGE),
        ("/bomb/br", FaultKind.BOMB),
        ("/bomb/zstd", FaultKind.BOMB),
        ("/bomb/stacked", FaultKind.BOMB),
        ("/encoding/lie", FaultKind.BAD_ENCODING),
        ("/encoding/unknown", FaultKind.BAD_ENCODING),
        ("/encoding/four-layers", FaultKind.BAD_ENCODING),
        ("/encoding/cut", FaultKind.TRUNCATED),
    ],
)
async def test_names_what_a_bad_site_does(site: HostileSite, fetcher: HttpFetcher, path: str, kind: FaultKind) -> None:
    found = await fault(fetcher, site.url(path))
    assert found.kind is kind, found
    assert (await fetched(fetcher, site.url("/ok"))).status == 200


async def test_a_closed_port_is_a_connect_fault(fetcher: HttpFetcher) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        found = await fault(fetcher, f"http://user:secret@127.0.0.1:{unused.getsockname()[1]}/")
    assert found.kind is FaultKind.CONNECT
    assert "secret" not in found.message


async def test_a_full_listen_queue_is_a_connect_timeout() -> None:
    fetcher = HttpFetcher(msgspec.structs.replace(SETTINGS, connect_seconds=0.2))
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    queued = [socket.socket() for _ in range(4)]
    for connection in queued:
        connection.setblocking(False)
        connection.connect_ex(listener.getsockname())
    try:
        found = await fault(fetcher, f"http://127.0.0.1:{listener.getsockname()[1]}/")
        assert found.kind is FaultKind.TIMEOUT_CONNECT
    finally:
        for connection in [*queued, listener]:
            connection.close()
        await fetcher.close()


async def test_having_no_file_descriptors_left_is_a_shortage(site: HostileSite, fetcher: HttpFetcher) -> None:
    await fetched(fetcher, site.url("/ok"))
    with few_files():
        found = await fault(fetcher, "http://127.0.0.2:9/")
    assert found.kind is FaultKind.SHORTAGE


async def test_cancelling_a_fetch_is_not_a_fault(site: HostileSite, fetcher: HttpFetcher) -> None:
    task = asyncio.create_task(fetcher.fetch(Fetch(url=site.url("/slow-headers"))))
    await eventually(lambda: site.requests)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
