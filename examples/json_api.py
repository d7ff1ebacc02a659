"""An API that pages through its products as JSON.

Try it on a shop of your own, in two terminals:

    python -m shoal.testing.sites.site --port 8000
    shoal run examples/json_api.py --allow-private -o products.jsonl
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from shoal import Page, Request, Spider


class Product(msgspec.Struct):
    """What the API says of a product. Anything with fields may be yielded: dataclasses and pydantic models too."""

    sku: str
    title: str
    price: str
    url: str


class Api(Spider):
    start = "http://127.0.0.1:8000/api/products.json?page=1"
    item_key = "sku"

    def parse(self, page: Page) -> Iterator[Any]:
        answer = page.json()
        # Raises when the API has changed: the page is retried, then a dead letter that says why.
        yield from msgspec.convert(answer["products"], list[Product])
        if answer["page"] < answer["last"]:
            yield Request(f"?page={answer['page'] + 1}")
