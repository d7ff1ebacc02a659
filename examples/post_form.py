"""A form sent several times: the same URL, but each body is a task of its own.

Try it on a site that shows what it was sent, in two terminals:

    python -m shoal.testing.sites.site --port 8000
    shoal run examples/post_form.py --allow-private -o searches.jsonl
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from shoal import Item, Page, Request, Spider

WORDS = ("harbour", "lantern", "café")


class Searches(Spider):
    """Its `start` is a method: a generator of requests."""

    def start(self) -> Iterator[Request]:
        for word in WORDS:
            yield Request(
                "http://127.0.0.1:8000/echo",
                handler=self.results,
                method="POST",
                headers={"content-type": "application/x-www-form-urlencoded"},
                body=urlencode({"q": word}),
                meta={"word": word},
            )

    def results(self, page: Page) -> Iterator[Any]:
        answer = page.json()
        yield Item(key=page.meta["word"], method=answer["method"], sent=answer["body"])
