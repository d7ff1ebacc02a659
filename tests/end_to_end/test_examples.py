"""Every example runs as it stands, through the command line, against the shop it is written for."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.testing.sites.site import CatalogueSite

pytestmark = pytest.mark.full

EXAMPLES = Path(__file__).parents[2] / "examples"
# Where the examples expect the shop, and books.py a site that looks like it.
ADDRESS = "http://127.0.0.1:8000/"
BOOKS = "https://books.toscrape.com/"
SECONDS = 120.0
# On a busy machine answers are slow now and then, and an adaptive pace would take that for a struggling site.
STEADY = os.environ | {"SHOAL_PACE": "fixed"}


@pytest.fixture
async def site() -> AsyncIterator[CatalogueSite]:
    async with CatalogueSite(products=45) as site:
        yield site


async def items_of(name: str, site: CatalogueSite, folder: Path) -> list[dict[str, Any]]:
    """Run a copy of the example that starts at the local site; gives its items."""
    source = (EXAMPLES / name).read_text(encoding="utf-8")
    assert ADDRESS in source or BOOKS in source
    copy = source.replace(ADDRESS, site.url).replace(BOOKS, f"{site.url}catalogue/page-1.html")
    (folder / name).write_text(copy, encoding="utf-8")
    command = [sys.executable, "-m", "shoal", "run", name, "--allow-private", "--rate", "unlimited", "-o", "out.jsonl"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=STEADY, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(SECONDS):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    with (folder / "out.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


async def test_books_finds_every_product(site: CatalogueSite, tmp_path: Path) -> None:
    items = await items_of("books.py", site, tmp_path)
    assert {item["_key"] for item in items} == site.expected_products()
    assert all(item["title"] and item["price"].startswith("£") for item in items)


async def test_sitemap_reads_every_product_and_no_listing(site: CatalogueSite, tmp_path: Path) -> None:
    items = await items_of("sitemap.py", site, tmp_path)
    assert {item["_key"] for item in items} == site.expected_products()
    assert {item["stock"] for item in items} == {site.catalogue.product(number).stock for number in range(45)}
    assert not [hit for hit in site.requests if hit.path.startswith("/catalogue/")]


async def test_json_api_pages_through_every_product(site: CatalogueSite, tmp_path: Path) -> None:
    items = await items_of("json_api.py", site, tmp_path)
    assert {item["sku"] for item in items} == site.expected_products()
    assert {item["_key"] for item in items} == site.expected_products()


async def test_page_range_reads_the_last_page_off_the_first(site: CatalogueSite, tmp_path: Path) -> None:
    items = await items_of("page_range.py", site, tmp_path)
    assert {item["_key"] for item in items} == {site.catalogue.address(number) for number in range(45)}
    listings = [hit.path for hit in site.requests if hit.path.startswith("/catalogue/")]
    assert sorted(listings) == ["/catalogue/page-1.html", "/catalogue/page-2.html", "/catalogue/page-3.html"]


async def test_post_form_sends_each_body_once(site: CatalogueSite, tmp_path: Path) -> None:
    items = await items_of("post_form.py", site, tmp_path)
    sent = {item["_key"]: (item["method"], item["sent"]) for item in items}
    assert sent == {"harbour": ("POST", "q=harbour"), "lantern": ("POST", "q=lantern"), "café": ("POST", "q=caf%C3%A9")}


def test_every_example_is_run() -> None:
    run = {"books.py", "sitemap.py", "json_api.py", "page_range.py", "post_form.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == run
