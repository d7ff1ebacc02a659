"""Headers with bytes beyond ASCII: none is lost on the way in, and a cookie goes back with the bytes it came with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fetch_checks import fault, fetched

from shoal.fetch.base import FaultKind, Fetch, location_of
from shoal.fetch.cookies import as_text
from shoal.fetch.http import HttpFetcher
from shoal.testing.few_files import few_files
from shoal.testing.sites.loopback import LoopbackServer, Reply, Request, reply

UTF8, LATIN1 = "caf\xc3\xa9", "caf\xe9"
# As the client writes a byte that it does not know, and as a site may write it itself.
LOOKS_ESCAPED = '\\xc3\\xa9 "\\" \\'


class Site:
    """Answers with the headers it is told to, and keeps the cookies it gets."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.asked: list[str] = []
        self.cookies: list[str] = []

    def answer(self, request: Request) -> Reply:
        self.asked.append(f"{request.method} {request.path}")
        self.cookies.append(request.headers.get("cookie", ""))
        plain = reply(b"a page", status=302, kind="text/plain")
        added = "".join(f"{line}\r\n" for line in self.lines).encode("latin-1")
        return plain._replace(head=plain.head.removesuffix(b"\r\n") + added + b"\r\n")


@pytest.fixture
async def odd() -> AsyncIterator[tuple[Site, str]]:
    site = Site()
    server = LoopbackServer(answer=site.answer)
    await server.start()
    yield site, f"http://127.0.0.1:{server.port}/"
    await server.close()


async def test_every_value_has_the_bytes_that_were_sent(odd: tuple[Site, str], fetcher: HttpFetcher) -> None:
    site, url = odd
    site.lines = [
        f"Location: /{UTF8}",
        "Set-Cookie: a=1; Path=/",
        f"Set-Cookie: b={LATIN1}; Path=/",
        f"X-Odd: {LOOKS_ESCAPED}{LATIN1}",
        "X-Empty: ",
        "Vary: a",
        f"Vary: {UTF8}",
        "Set-Cookie: c=3",
    ]
    page = await fetched(fetcher, url)
    assert (page.status, page.body) == (302, b"a page")
    assert page.headers == {
        "content-type": "text/plain",
        "content-length": "6",
        "location": f"/{UTF8}",
        "set-cookie": f"a=1; Path=/\nb={LATIN1}; Path=/\nc=3",
        "x-odd": LOOKS_ESCAPED + LATIN1,
        "x-empty": "",
        "vary": f"a, {UTF8}",
    }


@pytest.mark.parametrize(
    "name", ["Content-Encoding", "Transfer-Encoding-Info", "Connection", "Upgrade", "Trailer", "Host", "Expect"]
)
async def test_no_name_is_special_on_the_way(odd: tuple[Site, str], fetcher: HttpFetcher, name: str) -> None:
    site, url = odd
    site.lines = [f"{name}: identity, {LATIN1}"]
    answer = await fetcher.fetch(Fetch(url=url, method="HEAD"))
    assert getattr(answer, "headers", {}).get(name.lower()) == f"identity, {LATIN1}", answer


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("Location:\r\n  /next", {"location": "/next"}),
        (f"X-Odd: one\r\n\t{LATIN1}", {"x-odd": f"one {LATIN1}"}),
        ("X-Odd : one", {"x-odd": "one"}),
        ("PHP Warning on line 3", {}),
        ("PHP Warning: no such file", {}),
        ("X-Odd: a\x01b", {}),
    ],
)
async def test_odd_lines_between_headers_are_read_as_browsers_do(
    odd: tuple[Site, str], fetcher: HttpFetcher, line: str, read: dict[str, str]
) -> None:
    site, url = odd
    site.lines = [line, "X-Last: yes"]
    page = await fetched(fetcher, url)
    assert page.body == b"a page"
    assert page.headers == {"content-type": "text/plain", "content-length": "6", **read, "x-last": "yes"}


@pytest.mark.parametrize("more", [[], [f"X-Odd: {LATIN1}"]])
async def test_of_headers_that_are_sent_twice_the_one_counts_that_browsers_take(
    odd: tuple[Site, str], fetcher: HttpFetcher, more: list[str]
) -> None:
    site, url = odd  # its first Content-Type is text/plain
    site.lines = ["Location: /a", "Location: /a", "Content-Type: text/html; charset=koi8-r", *more]
    page = await fetched(fetcher, url)
    assert (page.headers["location"], page.headers["content-type"]) == ("/a", "text/html; charset=koi8-r")
    site.lines = ["Content-Type: text/html; charset=koi8-r", "Content-Type: text/html", "Content-Type: */*", *more]
    assert (await fetched(fetcher, url)).headers["content-type"] == "text/html; charset=koi8-r"
    site.lines = ["Content-Type: text/plain", *more]
    assert (await fetched(fetcher, url)).headers["content-type"] == "text/plain"


async def test_the_site_is_asked_once(odd: tuple[Site, str], fetcher: HttpFetcher) -> None:
    site, url = odd
    site.lines = [f"Location: /{LATIN1}"]
    await fetched(fetcher, url, method="POST", body=b"order")
    assert site.asked == ["POST /"]


async def test_many_answers_at_once_keep_their_own_headers(odd: tuple[Site, str], fetcher: HttpFetcher) -> None:
    site, url = odd
    for number in range(20):
        site.lines = [f"X-Number: {number} {LATIN1}"]
        assert (await fetched(fetcher, url)).headers["x-number"] == f"{number} {LATIN1}"


@pytest.mark.parametrize("value", [UTF8, LATIN1, f"{UTF8}{LATIN1}\xff", "plain"])
async def test_a_cookie_goes_back_with_the_bytes_it_came_with(
    odd: tuple[Site, str], fetcher: HttpFetcher, value: str
) -> None:
    site, url = odd
    await fetched(fetcher, url, headers={"Cookie": as_text(f"a={value}"), "X-Other": "b"})
    assert site.cookies == [f"a={value}"]


@pytest.mark.parametrize("free", [0, 1, 2])
async def test_without_descriptors_for_the_detour_the_page_is_tried_again(
    odd: tuple[Site, str], fetcher: HttpFetcher, free: int
) -> None:
    site, url = odd
    site.lines = [f"Location: /{UTF8}"]
    await fetched(fetcher, url)
    with few_files(free=free):
        assert (await fault(fetcher, url)).kind is FaultKind.SHORTAGE
    assert location_of((await fetched(fetcher, url)).headers) == "/caf%C3%A9"
