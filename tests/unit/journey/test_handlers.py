"""Handlers of every form, slips that are named with their line, and errors in one line."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from handler_runs import found, run

from shoal import Item, Page, Request, Spider
from shoal.errors import UsageError
from shoal.text.errors import line_of, traceback_of


@pytest.mark.parametrize("name", ["parse", "listed", "awaited", "streamed"])
async def test_handlers_may_yield_or_return_many_things(name: str) -> None:
    harvest = await run(name)
    assert [item.key for item in harvest.items] == ["k"]
    assert found(harvest) == ["/1", "/2"]


@pytest.mark.parametrize("name", ["mapping", "model", "struct", "awaited_item"])
async def test_handlers_may_return_one_item(name: str) -> None:
    [item] = (await run(name)).items
    assert json.loads(item.data) == {"a": 1}


async def test_handlers_may_return_one_request_links_or_nothing() -> None:
    assert found(await run("request")) == ["/1"]
    assert found(await run("followed")) == ["/1", "/2"]
    for name in ("nothing", "awaited_nothing"):
        harvest = await run(name)
        assert (harvest.items, harvest.found.tasks) == ([], {})


async def test_a_handler_that_does_not_exist_is_named() -> None:
    for name in ("missing", "start"):
        with pytest.raises(UsageError, match=f"Forms has no handler '{name}'"):
            await run(name)
    with pytest.raises(UsageError, match="a handler yielded a value of type"):
        await run("text")


class Slips(Spider):
    """Handlers with slips. Each is to be named with the line that ends in its mark."""

    def wrong_handler(self, page: Page) -> Iterator[Any]:
        yield Item(key="k", a=1)
        yield page.follow("a", "detials")  # mark: wrong_handler

    def wrong_request(self, page: Page) -> Iterator[Any]:
        yield Request("/1", handler="detials")  # mark: wrong_request

    def wrong_iterated(self, page: Page) -> Iterator[Any]:
        yield from page.follow("a", "detials")  # mark: wrong_iterated

    async def wrong_streamed(self, page: Page) -> AsyncIterator[Any]:
        await asyncio.sleep(0)
        yield Request("/1", handler="detials")  # mark: wrong_streamed

    def swallowed(self, page: Page) -> Iterator[Any]:
        try:
            yield page.follow("a", "detials")  # mark: swallowed
        except Exception:
            yield Item(key="k", a=1)

    async def swallowed_later(self, page: Page) -> AsyncIterator[Any]:
        try:
            yield page.follow("a", "detials")  # mark: swallowed_later
        except Exception:
            return

    def href_as_selector(self, page: Page) -> Iterator[Any]:
        yield page.follow(page.attr("a", "href"))  # mark: href_as_selector

    def bad_selector(self, page: Page) -> Iterator[Any]:
        yield page.follow("a[[", self.details)  # mark: bad_selector

    def no_parse(self, page: Page) -> Iterator[Any]:
        yield page.follow("a")  # mark: no_parse

    def details(self, page: Page) -> None: ...


DETAILS = "Slips has no handler 'detials': did you mean 'details'?"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("wrong_handler", DETAILS),
        ("wrong_request", DETAILS),
        ("wrong_iterated", DETAILS),
        ("wrong_streamed", DETAILS),
        ("swallowed", DETAILS),
        ("swallowed_later", DETAILS),
        ("href_as_selector", "page.follow('/1'): that is a URL, write page.follow(url='/1')"),
        ("bad_selector", "'a[[' is no CSS selector"),
        ("no_parse", "Slips has no parse method, and a request names no other handler: write one"),
    ],
)
async def test_a_slip_is_an_error_in_the_line_that_makes_it(name: str, line: str) -> None:
    with pytest.raises(UsageError) as caught:
        await run(name, Slips())
    assert str(caught.value) == line
    lines = [frame.line or "" for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert any(text.endswith(f"# mark: {name}") for text in lines)


class Forgetful(Spider):
    def parse(self, page: Page) -> None:
        page.follow("a")

    async def later(self, page: Page) -> None:
        page.follow(url="/1")

    def looks(self, page: Page) -> None:
        assert len(list(page.follow("a"))) == 2


@pytest.mark.parametrize("name", ["parse", "later"])
async def test_links_that_a_handler_neither_yields_nor_returns_are_an_error(name: str) -> None:
    with pytest.raises(UsageError, match=r"calls page.follow and returns nothing: write `yield page.follow"):
        await run(name, Forgetful())
    assert found(await run("looks", Forgetful())) == []


def again(handler: Any) -> Any:
    @functools.wraps(handler)
    def yields(self: Any, page: Page) -> Iterator[Any]:
        yield from handler(self, page)

    return yields


class Returning(Spider):
    def both(self, page: Page) -> Any:
        if page.url.endswith("/list"):
            yield page.follow("a")
        return {"a": 1}  # mark: both

    def within(self, page: Page) -> Any:
        def price() -> int:
            return 1

        if page.url.endswith("/list"):
            return
        yield {"a": price(), "b": [(lambda: 1)()]}
        return None

    @again
    def wrapped(self, page: Page) -> Any:
        return [{"a": 1}]


async def test_a_value_that_a_generator_returns_is_an_error() -> None:
    lines = inspect.getsource(sys.modules[__name__]).splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.endswith("# mark: both"))
    with pytest.raises(UsageError, match=rf"^Returning.both yields, so what it returns in line {line} is lost: yield"):
        await run("both", Returning())


@pytest.mark.parametrize("name", ["within", "wrapped"])
async def test_a_generator_that_only_ends_is_none(name: str) -> None:
    assert len((await run(name, Returning())).items) == 1


def test_an_error_in_one_line_and_its_last_frames() -> None:
    class Broken(Exception):  # noqa: N818 -- a test's own
        def __str__(self) -> str:
            raise RuntimeError

    assert line_of(ValueError("no\n price \ud800")) == "ValueError: no price \\ud800"
    assert line_of(Broken()) == "Broken: (no text)"
    assert len(line_of(ValueError("x" * 10_000))) == 500
    half_cut = ValueError("x" * 480 + " hunter2hunter2hunter2")
    assert "hunter2" not in line_of(half_cut, secrets=["hunter2hunter2hunter2"])
    try:
        raise ValueError("deep \ud800")
    except ValueError as error:
        lines = traceback_of(error)
    assert lines.endswith("ValueError: deep \\ud800")
    assert "test_handlers.py" in lines
    quoting = traceback_of(ValueError("x" * 990 + " hunter2hunter2hunter2" + "x" * 1_000_000), secrets=["hunter2" * 3])
    assert "hunter2" not in quoting
    assert len(quoting) < 2000


def test_an_error_that_quotes_a_whole_page_is_cut_short() -> None:
    try:
        float("x" * 1_000_000)
    except ValueError as error:
        lines = traceback_of(error)
    assert "could not convert string to float: 'xxx" in lines
    assert len(lines) < 10_000
