"""`scrapy runspider` as people run it: a process of its own, in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scrapy_versions import ScrapyVersion

from called_here import call_shoal
from shoal.testing.sites.site_process import SiteProcess

SECONDS = 120.0
RUNSPIDER = ("-m", "scrapy", "runspider", "pages.py")

HEAD = """
import scrapy

class Pages(scrapy.Spider):
    name = "pages"
    start_urls = ["{url}"]
    custom_settings = {{
        "ADDONS": {{"shoal.scrapy.Addon": 0}},
        "SHOAL_FRONTIER": "{frontier}",
        "SHOAL_STORE": "shoal.db",
        "SHOAL_ITEM_KEY": "key",
        "SHOAL_RETRY_SECONDS": 0.05,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
        "DOWNLOAD_DELAY": 0,
        "TELNETCONSOLE_ENABLED": False,
    }}
"""
GRAPH = """
    def parse(self, response):
        yield {"key": response.css("h1::text").get(), "url": response.url}
        yield from response.follow_all(css="a", callback=self.parse)
"""


def fetched(site: SiteProcess) -> Counter[str]:
    """How often the site was asked for each page."""
    return Counter(hit.path for hit in site.hits() if hit.path != "/robots.txt")


class Project:
    """A folder with a spider's file."""

    def __init__(self, folder: Path, scrapy: ScrapyVersion = ScrapyVersion()) -> None:  # noqa: B008 -- never changes
        self.folder = folder
        self.scrapy = scrapy
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        if scrapy.folder is not None:
            self._environ["PYTHONPATH"] = str(scrapy.folder)

    def write(self, url: str, methods: str = GRAPH, *, frontier: str = "shoal.db", head: str = HEAD) -> None:
        """The spider's file."""
        (self.folder / "pages.py").write_text(head.format(url=url, frontier=frontier) + methods)

    def start(self, *arguments: str, command: Sequence[str] = RUNSPIDER) -> subprocess.Popen[str]:
        """Begin a crawl, or join it."""
        # A package next to the tests has the name of the library: only this folder is searched.
        reactor = self.scrapy.reactor if command == RUNSPIDER else ()
        words = [sys.executable, *command, *reactor, *arguments]
        return subprocess.Popen(
            words, cwd=self.folder, env=self._environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def run(self, *arguments: str, command: Sequence[str] = RUNSPIDER, code: int = 0) -> str:
        """A crawl to its end; gives what Scrapy logged."""
        process = self.start(*arguments, command=command)
        try:
            output, _ = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
        assert process.returncode == code, output
        return output

    def shoal(self, *arguments: str) -> Any:
        """What a command of shoal says as JSON."""
        said = call_shoal(self.folder, *arguments, "--json").stdout
        return json.loads(said) if said.strip() else None

    def counts(self, crawl: str = "pages-1") -> tuple[str, int, int, int]:
        """State, done, dead and left of a crawl."""
        status = self.shoal("status", crawl)
        return status["state"], status["progress"]["done"], status["progress"]["dead"], status["left"]

    def items(self, *places: str, crawl: str = "pages-1") -> list[Any]:
        """The stored items, exported."""
        call_shoal(self.folder, "export", crawl, "-o", "out.jsonl", *places)
        return [json.loads(line) for line in (self.folder / "out.jsonl").read_text().splitlines()]
