"""No request reaches the inside network of a proxy or a gateway."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from exit_fetches import SETTINGS, Names, answering, fetching, proxy_exit, talking, through

from shoal.fetch.base import Fault, FaultKind, Fetch, Response
from shoal.fetch.exits import ExitConfig

GUARDED = msgspec.structs.replace(SETTINGS, allow_private=False)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://169.254.169.254/latest/",
        "https://[::1]/",
        "http://inside.example/",
        "https://mixed.example/",
        "http://localhost/",
        "http://metadata.google.internal/",
        "http://printer/",
        "http://router.lan./",
    ],
)
@pytest.mark.parametrize("kind", ["proxy", "gateway"])
async def test_no_page_reaches_the_inside_network_of_an_exit(url: str, kind: str) -> None:
    names = Names(inside_example=["10.0.0.1"], mixed_example=["93.184.216.34", "192.168.0.1"])
    reached: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(await reader.read(100))

    async with talking(note) as port:
        at = f"http://127.0.0.1:{port}"
        config = (
            ExitConfig(name="pool/one", kind="gateway", url=f"{at}/?u={{url}}") if kind == "gateway" else proxy_exit(at)
        )
        answer = await through(config, url, settings=GUARDED, names=names)
    assert isinstance(answer, Fault)
    assert answer.kind is FaultKind.REFUSED_ADDRESS, answer
    assert reached == []


async def test_a_name_that_only_the_proxy_knows_is_left_to_it() -> None:
    async with talking(answering("200 OK")) as port:
        names = Names(public_example=["93.184.216.34"])
        async with fetching(proxy_exit(f"http://127.0.0.1:{port}"), settings=GUARDED, names=names) as fetcher:
            for host in ("unknown.example", "public.example", "public.example"):
                answer = await fetcher.fetch(Fetch(url=f"http://{host}/", exit="pool/one"))
                assert isinstance(answer, Response), answer
    assert names.asked == ["unknown.example", "public.example"]
