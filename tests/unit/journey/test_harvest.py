"""What handlers yield: items of every kind, their keys, and values that no store could keep."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import json
from types import MappingProxyType
from typing import Any

import msgspec
import pydantic
import pytest

from shoal import Item, Request
from shoal.journey.harvest import Harvest
from shoal.journey.intake import Intake
from shoal.settings import Settings
from shoal.testing.fakes import make_page
from shoal.urls import UrlRules

PAGE = "https://a.test/dir/page"


@dataclasses.dataclass
class Data:
    sku: str
    price: float


class Model(pydantic.BaseModel):
    sku: str
    price: float


class Struct(msgspec.Struct):
    sku: str
    price: float


def harvest(*outputs: Any, item_key: str = "", **settings: Any) -> Harvest:
    values = Settings(**settings)
    intake = Intake(UrlRules(values, start_hosts=["a.test"]), values)
    collected = Harvest(make_page("<a href=/1></a>"), intake=intake, item_key=item_key)
    for output in outputs:
        collected.add(output)
    return collected


def items(*outputs: Any, item_key: str = "") -> list[tuple[str, Any]]:
    return [(item.key, json.loads(item.data)) for item in harvest(*outputs, item_key=item_key).items]


@pytest.mark.parametrize("kind", [Data, Model, Struct, dict, Item, lambda **fields: MappingProxyType(fields)])
def test_every_kind_of_item_gives_its_fields(kind: Any) -> None:
    item = kind(sku="a", price=1.5)
    assert items(item) == [(PAGE, {"sku": "a", "price": 1.5})]
    assert items(item, item_key="sku") == [("a", {"sku": "a", "price": 1.5})]


def test_an_items_own_key_counts_before_item_key() -> None:
    assert items(Item(key="k", sku="a"), item_key="sku") == [("k", {"sku": "a"})]
    assert items(Item(key=7, sku="a")) == [("7", {"sku": "a"})]
    assert items(Item(key=0)) == [("0", {})]


def test_items_without_a_key_do_not_replace_each_other() -> None:
    keys = [key for key, _ in items({"a": 1}, {"a": 2}, Item(key="", a=3), {"a": None}, item_key="missing")]
    assert keys == [PAGE, f"{PAGE}#2", f"{PAGE}#3", f"{PAGE}#4"]


def test_values_json_has_no_word_for_are_stored_as_text() -> None:
    [(_, fields)] = items(
        {
            "none": None,
            "when": datetime.date(2026, 5, 1),
            "price": decimal.Decimal("1.50"),
            "tags": {"a"},
            "bytes": b"ab",
            "models": [Model(sku="a", price=1)],
            "path": complex(1, 2),
            "huge": 2**70,
            1: "number",
        }
    )
    assert fields == {
        "none": None,
        "when": "2026-05-01",
        "price": "1.50",
        "tags": ["a"],
        "bytes": "YWI=",
        "models": [{"sku": "a", "price": 1.0}],
        "path": "(1+2j)",
        "huge": 2**70,
        "1": "number",
    }


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"a": "\ud800"}, "half of a surrogate pair in a"),
        ({"a": {"b": ["é", "x\udfff"]}}, "half of a surrogate pair in a.b.1"),
        ({"\ud800": "a"}, "half of a surrogate pair in the name of a field of its own"),
        ({"none": None, "price": float("nan")}, "a number that is not finite in price"),
        ({"sizes": [1.5, float("inf")]}, "a number that is not finite in sizes.1"),
        ({"deep": (Struct(sku="null", price=float("-inf")),)}, "a number that is not finite in deep.0.price"),
        ({"deep": Data(sku="", price=float("nan"))}, "a number that is not finite in deep.price"),
        ({"deep": Model(sku="", price=float("nan"))}, "a number that is not finite in deep.price"),
    ],
)
def test_an_item_no_store_could_keep_is_named_and_the_others_are_kept(fields: dict[str, Any], why: str) -> None:
    collected = harvest({"a": 1}, Item(key="bad", **fields), {"null": None}, Request("/2"))
    assert collected.unstorable == [("bad", why)]
    assert [json.loads(item.data) for item in collected.items] == [{"a": 1}, {"null": None}]
    assert len(collected.found.tasks) == 1


def test_an_item_that_holds_itself_is_unstorable() -> None:
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    assert harvest(loop).unstorable == [(PAGE, "its fields are nested too deep")]


@pytest.mark.parametrize("output", ["text", 5, b"x", ("a", 1), object(), Data])
def test_anything_else_says_what_may_be_yielded(output: Any) -> None:
    with pytest.raises(TypeError, match="a handler may yield"):
        harvest(output)


def test_requests_and_follows_are_found_tasks_and_none_is_nothing() -> None:
    page = make_page("<a href=/1></a>")
    found = harvest(None, Request("/2"), page.follow("a")).found
    assert [task.url for task in found.tasks.values()] == ["https://a.test/2", "https://a.test/1"]


def test_requests_beyond_the_limit_of_a_page_are_named() -> None:
    found = harvest(*(Request(f"/{number}") for number in range(5)), max_links=3).found
    assert (len(found.tasks), found.rejected) == (3, {"too_many_links": 2})


def test_a_request_is_relative_to_the_base_of_its_page() -> None:
    values = Settings()
    intake = Intake(UrlRules(values, start_hosts=["a.test"]), values)
    collected = Harvest(make_page("<base href=/root/>"), intake=intake, item_key="")
    collected.add(Request("x"))
    assert [task.url for task in collected.found.tasks.values()] == ["https://a.test/root/x"]


def test_a_base_on_another_host_brings_no_request_into_scope() -> None:
    values = Settings()
    intake = Intake(UrlRules(values, start_hosts=["a.test"]), values)
    collected = Harvest(make_page("<base href=https://b.test/root/>"), intake=intake, item_key="")
    collected.add(Request("x", priority=3))
    collected.add(Request("https://a.test/y", priority=3))
    assert [(task.url, task.priority) for task in collected.found.tasks.values()] == [("https://a.test/y", 3)]
    assert collected.found.samples == [("out_of_scope", "https://b.test/root/x")]
