"""Playwright without a crawler: one Chromium, a context of its own for each page, so many pages at once.

`python -m bench.bare_renders URL PAGES AT_ONCE`: one JSON line per page on standard output."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator

from playwright.async_api import Browser, async_playwright

from shoal.browser.installed import check_browser
from shoal.settings.table import Settings


async def render_all(url: str, pages: int, at_once: int) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=check_browser(Settings()), args=["--disable-gpu", *["--no-sandbox"] * (os.geteuid() == 0)]
        )
        numbers = iter(range(pages))
        await asyncio.gather(*(_render_some(browser, url, numbers) for _ in range(at_once)))
        await browser.close()


async def _render_some(browser: Browser, url: str, numbers: Iterator[int]) -> None:
    for number in numbers:
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(f"{url}page-{number:05d}.html")
        await page.wait_for_selector("h1")
        title, links = await page.inner_text("h1"), await page.locator("a[href]").count()
        await page.content()
        await context.close()
        print(json.dumps({"title": title, "links": links}), flush=True)


if __name__ == "__main__":
    asyncio.run(render_all(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
