"""Requests through gateways: what they see, and which of their answers is the page's."""

from __future__ import annotations

import msgspec
import pytest
from exit_fetches import SECRET, Names, Site, is_exits_fault, through

from shoal.fetch.base import Response
from shoal.fetch.exits import ExitConfig
from shoal.fetch.proxies import gateway_answer
from shoal.testing.fakes import respond
from shoal.testing.servers.programs import free_port
from shoal.testing.servers.proxy_servers import Gateway


async def test_a_gateway_fetches_the_page_for_us(site: Site) -> None:
    async with Gateway(key=SECRET, address="127.0.0.6") as gateway:
        config = ExitConfig(name="pool/one", kind="gateway", url=gateway.template, error_statuses=(401,))
        answer = await through(config, site.url)
        assert isinstance(answer, Response), answer
        assert (answer.url, answer.body) == (site.url, b"ok")
        assert site.asked[0].peer == "127.0.0.6"
        assert site.asked[0].path == "/page?a=1&b=%26"
        gateway.key = "another"
        assert "401" in is_exits_fault(await through(config, site.url))


async def test_a_gateway_sees_no_secrets_of_the_page_unless_told_to(site: Site) -> None:
    headers = {"Authorization": "Bearer x1", "Cookie": "id=x2", "X-Api-Key": "x3", "X-Render": "true"}
    async with Gateway(key=SECRET) as gateway:
        config = ExitConfig(name="pool/one", kind="gateway", url=gateway.template)
        await through(config, site.url, headers=headers)
        await through(msgspec.structs.replace(config, forwards_secrets=True), site.url, headers=headers)
    closed, opened = (head.lower() for head in gateway.heads)
    assert "x-render: true" in closed
    assert "x1" not in closed
    assert "x2" not in closed
    assert "x3" not in closed
    assert "x1" in opened
    assert "x2" in opened


@pytest.mark.parametrize(
    ("location", "is_own"),
    [
        ("/next", False),
        ("http://shop.example/", False),
        ("http://[::1", False),
        ("", True),
        (f"http://another.example/?key={SECRET}", True),
        (f"http://shop.example/?from=http%3A%2F%2F127.0.0.6%2F%3Fkey%3D{SECRET}", True),
    ],
)
async def test_a_redirect_is_the_pages_unless_it_leads_to_the_gateway(
    site: Site, location: str, *, is_own: bool
) -> None:
    async with Gateway(key=SECRET, address="127.0.0.6") as gateway:
        gateway.location = location or f"http://127.0.0.6:{gateway.port}/again?key={SECRET}"
        answer = await through(ExitConfig(name="pool/one", kind="gateway", url=gateway.template), site.url)
    if is_own:
        assert "redirects to itself" in is_exits_fault(answer)
    else:
        assert isinstance(answer, Response)
        assert (answer.url, answer.headers["location"]) == (site.url, location)


def test_what_a_gateway_says_of_its_key_is_not_kept() -> None:
    config = ExitConfig(
        name="pool/one", kind="gateway", url=f"http://gate.example/?key={SECRET}&device=desktop&url={{url}}"
    )
    headers = {"x-asked": f"/?key={SECRET}", "location": "http://shop.example/desktop", "x-device": "desktop"}
    answer = gateway_answer(config, respond("http://shop.example/", headers=headers))
    assert isinstance(answer, Response)
    assert SECRET not in str(answer.headers)
    assert (answer.headers["location"], answer.headers["x-device"]) == ("http://shop.example/desktop", "desktop")


async def test_a_gateway_that_is_gone_is_the_exits_fault(site: Site) -> None:
    for host in (f"127.0.0.1:{free_port()}", "gateway.invalid"):
        config = ExitConfig(name="pool/one", kind="gateway", url=f"http://{host}/?key={SECRET}&u={{url}}")
        is_exits_fault(await through(config, site.url, names=Names()))
