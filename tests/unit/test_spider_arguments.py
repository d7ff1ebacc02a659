"""Arguments of spiders: where they go, and what is said of those that go nowhere."""

from __future__ import annotations

from typing import Any

import pytest

from shoal import Spider
from shoal.errors import UsageError
from shoal.spider.loading import made


class Plain(Spider):
    start = "https://example.com/"
    city = "Bonn"
    pages = 3
    ratio = 0.5
    deep = False

    def helper(self) -> None: ...


class Made(Spider):
    def __init__(self, city: str, *, year: str = "2026") -> None:
        self.city, self.year = city, year


class Open(Spider):
    def __init__(self, **rest: Any) -> None:
        self.rest = rest


def test_attributes_are_set_in_their_own_type() -> None:
    spider = made(Plain, {"city": "Köln", "pages": "7", "ratio": "0.25", "deep": "true"})
    assert vars(spider) == {
        "city": "Köln", "pages": 7, "ratio": 0.25, "deep": True,
        "arguments": {"city": "Köln", "pages": "7", "ratio": "0.25", "deep": "true"},
    }  # fmt: skip
    assert (Plain.city, Plain.pages) == ("Bonn", 3)


def test_parameters_are_passed() -> None:
    spider = made(Made, {"city": "Köln", "year": "1999"})
    assert isinstance(spider, Made)
    assert (spider.city, spider.year) == ("Köln", "1999")
    other = made(Open, {"anything": "x"})
    assert isinstance(other, Open)
    assert other.rest == {"anything": "x"}


def test_without_arguments_nothing_changes() -> None:
    assert vars(made(Plain)) == {}
    assert not made(Plain).arguments


@pytest.mark.parametrize(
    ("spider", "arguments", "line"),
    [
        (Plain, {"ctiy": "x"}, "Plain takes no argument 'ctiy': did you mean city?"),
        (Plain, {"helper": "x"}, "Plain takes no argument 'helper': it has city, deep, pages, ratio"),
        (Plain, {"start": "x"}, "takes no argument 'start'"),
        (Plain, {"rate": "9/s"}, "rate is a setting, no argument of Plain: write --set rate=9/s"),
        (Plain, {"pages": "many"}, "-a pages=many: Plain.pages is a whole number"),
        (Made, {}, "Made.__init__ needs city: give -a city=…"),
    ],
)
def test_slips_are_refused(spider: type[Spider], arguments: dict[str, str], line: str) -> None:
    with pytest.raises(UsageError) as refusal:
        made(spider, arguments)
    assert line in str(refusal.value)
