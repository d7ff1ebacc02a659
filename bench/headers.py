"""What cookies, and headers with bytes beyond ASCII, cost a page: `python -m bench.headers`."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from shoal.fetch.base import Fetch, Response
from shoal.fetch.http import HttpFetcher
from shoal.settings.table import Settings
from shoal.testing.fakes import lease_for, passages_for
from shoal.testing.sites.loopback import LoopbackServer, reply

URL, OTHER = "https://www.shop.example/page", "https://www.other.example/"
COOKIES = "sid=8f14e45fceea167a; Path=/; HttpOnly\nlang=en; Path=/; Max-Age=31536000"
ROUNDS = 5


class Silent:
    """A fetcher that answers at once, so that only the cookies take time."""

    def __init__(self) -> None:
        self.headers = {"content-type": "text/html", "server": "nginx"}

    async def fetch(self, request: Fetch) -> Response:
        return Response(url=request.url, status=200, headers=self.headers, body=b"", wire_size=0, elapsed=0.0)

    async def close(self) -> None:
        pass


async def visits(number: int, *, cookies: str = "worker", sets: str = "", elsewhere: bool = False) -> float:
    """Microseconds for a page as its lease sees it. `elsewhere`: another site has set cookies."""
    fetcher = Silent()
    passages = passages_for(fetcher, settings=Settings(cookies=cookies))
    plain = fetcher.headers
    if elsewhere:
        fetcher.headers = {**plain, "set-cookie": COOKIES}
        await passages.open(lease_for(OTHER)).fetch(Fetch(url=OTHER))
    fetcher.headers = {**plain, "set-cookie": sets} if sets else plain
    lease, request = lease_for(URL), Fetch(url=URL)

    async def one() -> None:
        await passages.open(lease).fetch(request)

    return await _fastest(one, number, clock=time.perf_counter)


async def fetches(number: int, *, header: str) -> float:
    """Microseconds of CPU for a fetch over loopback, the site's share included."""
    site = LoopbackServer(answer=lambda _: reply("hello", headers={"X-Name": header}))
    await site.start()
    fetcher = HttpFetcher(Settings(allow_private=True))
    request = Fetch(url=f"http://127.0.0.1:{site.port}/")

    async def one() -> None:
        await fetcher.fetch(request)

    try:
        return await _fastest(one, number, clock=time.process_time)
    finally:
        await fetcher.close()
        await site.close()


async def _fastest(one: Callable[[], Awaitable[None]], number: int, *, clock: Callable[[], float]) -> float:
    rounds = []
    for _ in range(ROUNDS):
        start = clock()
        for _ in range(number):
            await one()
        rounds.append((clock() - start) / number * 1e6)
    return min(rounds)


async def measure(number: int) -> dict[str, float]:
    return {
        "a page, cookies off": await visits(number, cookies="off"),
        "a page, no cookies met": await visits(number),
        "a page, cookies of other sites": await visits(number, elsewhere=True),
        "a page that sets two cookies": await visits(number, sets=COOKIES),
        "a fetch, ASCII headers": await fetches(number // 50, header="cafe"),
        "a fetch, one header in Latin-1": await fetches(number // 50, header="caf\xe9"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.headers", description=__doc__)
    parser.add_argument("--pages", type=int, default=20_000, help="pages of one round")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.pages))
    for name, microseconds in figures.items():
        print(f"{name:34} {microseconds:8.1f} µs")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
