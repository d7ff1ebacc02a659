"""Fetches whose answer is checked, and the names they ask for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import msgspec

from shoal.fetch.base import Fault, Fetch, Response
from shoal.fetch.http import HttpFetcher
from shoal.settings.table import Settings

MIB = 1024 * 1024
SETTINGS = Settings(
    allow_private=True,
    connect_seconds=10.0,
    first_byte_seconds=10.0,
    idle_seconds=10.0,
    total_seconds=20.0,
    max_body_bytes=2 * MIB,
)


class Names:
    """A name service for tests that counts the questions."""

    def __init__(self, **addresses: Sequence[str]) -> None:
        self.addresses = {name.replace("_", "."): found for name, found in addresses.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        await asyncio.sleep(0.01)  # as a name server takes a moment: other requests for the name come meanwhile
        if host not in self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self.addresses[host]


async def fetched(fetcher: HttpFetcher, url: str, **request: object) -> Response:
    answer = await fetcher.fetch(msgspec.convert({"url": url, **request}, Fetch))
    assert isinstance(answer, Response), answer
    return answer


async def fault(fetcher: HttpFetcher, url: str) -> Fault:
    answer = await fetcher.fetch(Fetch(url=url))
    assert isinstance(answer, Fault), answer
    assert "\n" not in answer.message
    assert 0 < len(answer.message) <= 250
    assert answer.elapsed >= 0
    return answer
