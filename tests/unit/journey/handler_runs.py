"""A spider with a handler of every form, and handlers that are run on one page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pydantic

from shoal import Item, Page, Request, Spider
from shoal.journey.handlers import Handlers
from shoal.journey.harvest import Harvest
from shoal.journey.intake import Intake, RecentKeys
from shoal.settings.table import Settings
from shoal.testing.fakes import make_page
from shoal.urls.canonical import UrlRules

LIMIT = 0.2


class Model(pydantic.BaseModel):
    a: int = 1


class Struct(msgspec.Struct):
    a: int = 1


class Forms(Spider):
    def parse(self, page: Page) -> Iterator[Any]:
        yield Item(key="k", a=1)
        yield Request("/1")
        yield None
        yield page.follow("a")

    def listed(self, page: Page) -> list[Any]:
        return [Item(key="k", a=1), Request("/1"), page.follow("a")]

    def nothing(self, page: Page) -> None:
        return None

    def mapping(self, page: Page) -> dict[str, int]:
        return {"a": 1}

    def model(self, page: Page) -> Model:
        return Model()

    def struct(self, page: Page) -> Struct:
        return Struct()

    def request(self, page: Page) -> Request:
        return Request("/1")

    def followed(self, page: Page) -> Any:
        return page.follow("a")

    async def awaited(self, page: Page) -> list[Any]:
        await asyncio.sleep(0)
        return self.listed(page)

    async def awaited_item(self, page: Page) -> Model:
        return Model()

    async def awaited_nothing(self, page: Page) -> None:
        await asyncio.sleep(0)

    async def streamed(self, page: Page) -> AsyncIterator[Any]:
        for part in self.listed(page):
            await asyncio.sleep(0.001)
            yield part

    def text(self, page: Page) -> str:
        return "text"


def handlers(
    spider: Spider,
    *,
    seconds: float = LIMIT,
    clock: Callable[[], float] = time.time,
    known: RecentKeys | None = None,
    **settings: Any,
) -> Handlers:
    values = Settings(**settings)
    intake = Intake(UrlRules(values, start_hosts=["a.test"]), values, known=known, clock=clock)
    return Handlers(spider, intake=intake, item_key="", seconds=seconds)


async def run(name: str, spider: Spider | None = None, **page: Any) -> Harvest:
    given = make_page("<a href=/1></a><a href=/2></a>", handler=name, **page)
    return await handlers(spider or Forms()).run(given)


def found(harvest: Harvest) -> list[str]:
    return [task.url.removeprefix("https://a.test") for task in harvest.found.tasks.values()]
