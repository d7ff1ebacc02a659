"""What handlers yield: items of every kind, their keys, and values that no store could keep."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import json
import re
import uuid
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

from shoal import Item, Request
from shoal.errors import UsageError
from shoal.journey.harvest import Harvest
from shoal.journey.intake import Intake
from shoal.settings.table import Settings
from shoal.testing.fakes import make_page
from shoal.urls.canonical import UrlRules

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


class Loose(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    sku: str = ""
    price: Annotated[Any, pydantic.SkipValidation]


class Colour(enum.Enum):
    RED = "red"


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Real(float):
    pass


def numpy_like(value: int) -> Any:
    """A number that tells its value as those of numpy do."""
    return type("int64", (), {"__module__": "numpy", "tolist": lambda self: value})()


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
    keys = [key for key, _ in items({"a": 1}, {"a": 2}, Item(key="", a=3), {"a": None})]
    assert keys == [PAGE, f"{PAGE}#2", f"{PAGE}#3", f"{PAGE}#4"]


def test_items_whose_key_is_empty_are_counted() -> None:
    assert harvest({"a": 1}, Item(a=2)).keyless == 0
    assert harvest(Item(key="", a=1), Item(key="k", a=2)).keyless == 1
    collected = harvest({"sku": ""}, {"sku": None}, {"sku": 0}, Item(key="k"), item_key="sku")
    assert ([item.key for item in collected.items], collected.keyless) == ([PAGE, f"{PAGE}#2", "0", "k"], 2)


@pytest.mark.parametrize(
    ("item", "line"),
    [
        (
            {"name": 1, "price": 2, "sku": 3},
            "item_key 'ski': the item has no such field; it has name, price, sku: did you mean 'sku'?",
        ),
        (
            Data(sku="a", price=1),
            "item_key 'ski': the item has no such field; it has sku, price: did you mean 'sku'?",
        ),
        (
            Item(title="x"),
            "item_key 'ski': the item has no such field; it has title; an item of another kind needs a key of its own:"
            " Item(key=…)",
        ),
        ({}, "item_key 'ski': the item has no such field; it has none at all; an item of another kind needs a key of"),
    ],
)
def test_an_item_without_the_field_of_its_key_is_an_error(item: Any, line: str) -> None:
    with pytest.raises(UsageError, match=re.escape(line)):
        harvest(item, item_key="ski")
    assert items(Item(key="own", title="x"), item_key="ski") == [("own", {"title": "x"})]


def test_values_json_has_no_type_for_are_stored_as_what_they_mean() -> None:
    [(_, fields)] = items(
        {
            "none": None,
            "when": datetime.date(2026, 5, 1),
            "price": decimal.Decimal("1.50"),
            "tags": {"a"},
            "bytes": b"ab",
            "models": [Model(sku="a", price=1)],
            "path": PurePosixPath("a/b"),
            "huge": 2**70,
            "day": datetime.timedelta(days=1),
            "id": uuid.UUID(int=5),
            "colour": Colour.RED,
            "text": Text("t"),
            "number": Number(3),
            "real": Real(2.5),
            "range": range(2),
            "queue": collections.deque([1]),
            "keys": {"a": 1}.keys(),
            "values": {"a": 1}.values(),
            "proxy": MappingProxyType({"a": [Data(sku="a", price=1)]}),
            "numpy": numpy_like(7),
            1: "number",
            None: "null",
        }
    )
    assert fields == {
        "none": None,
        "when": "2026-05-01",
        "price": "1.50",
        "tags": ["a"],
        "bytes": "YWI=",
        "models": [{"sku": "a", "price": 1.0}],
        "path": "a/b",
        "huge": 2**70,
        "day": "P1D",
        "id": "00000000-0000-0000-0000-000000000005",
        "colour": "red",
        "text": "t",
        "number": 3,
        "real": 2.5,
        "range": [0, 1],
        "queue": [1],
        "keys": ["a"],
        "values": [1],
        "proxy": {"a": [{"sku": "a", "price": 1}]},
        "numpy": 7,
        "1": "number",
        "null": "null",
    }


ELEMENT = make_page("<h1>x</h1>").css("h1")[0]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"price": ELEMENT}, "field price is an Element: did you mean page.text(…) or element.text()?"),
        ({"price": ELEMENT.node}, "field price is a node of the parser: did you mean .text()?"),
        ({"price": ELEMENT.text}, "field price is a method: did you forget ()?"),
        ({"price": str.strip}, "field price is a method: did you forget ()?"),
        ({"price": lambda: 1}, "field price is a method: did you forget ()?"),
        ({"price": Data}, "field price is the class Data"),
        ({"offers": [{"price": 1}, {"price": ELEMENT}]}, "field offers.1.price is an Element: did you mean page.text"),
        ({"tags": (text for text in "ab")}, "field tags is a generator: write list(…)"),
        ({"tags": map(str, [1])}, "field tags is an iterator: write list(…)"),
        ({"page": make_page("")}, "field page is the page itself: did you mean page.text(…) or page.url?"),
        ({"next": make_page("").follow("a")}, "field next is the result of page.follow: yield it by itself"),
        ({"z": 1j}, "field z is a complex, which has no meaning in JSON: write its text or its number, such as str(…)"),
        ({"at": object()}, "field at is an object, which has no meaning in JSON"),
        ({"a": {("x", 1): 2}}, "the name of a field of a is a tuple, which has no meaning in JSON"),
        ({"a": Data(sku="", price=ELEMENT)}, "field a.price is an Element"),
        ({"a": Loose(price=ELEMENT)}, "field a.price is an Element"),
        ({"a": Struct(sku="", price=ELEMENT)}, "field a.price is an Element"),
        ({"a": (1, MappingProxyType({"b": ELEMENT}))}, "field a.1.b is an Element"),
    ],
)
def test_a_field_without_a_meaning_in_json_is_named_and_never_stored_as_its_repr(
    fields: dict[str, Any], why: str
) -> None:
    collected = harvest({"a": 1}, Item(key="bad", good=1, **fields), Request("/2"))
    [(key, said)] = collected.unstorable
    assert (key, said[: len(why)]) == ("bad", why)
    assert [json.loads(item.data) for item in collected.items] == [{"a": 1}]
    assert len(collected.found.tasks) == 1


@pytest.mark.parametrize("kind", [Data, Loose, Struct, Item, lambda **fields: MappingProxyType(fields)])
def test_the_field_is_named_for_every_kind_of_item(kind: Any) -> None:
    item = kind(sku="a", price=ELEMENT)
    [(_, why)] = harvest(item).unstorable
    assert why == "field price is an Element: did you mean page.text(…) or element.text()?"


@pytest.mark.parametrize("kind", [Data, Struct, Item])
def test_a_generator_is_named_where_it_cannot_be_copied(kind: Any) -> None:
    [(_, why)] = harvest(kind(sku="a", price=(number for number in [1]))).unstorable
    assert why == "field price is a generator: write list(…)"


async def test_a_coroutine_as_a_field_asks_for_await() -> None:
    async def later() -> None: ...

    waiting = later()
    [(_, why)] = harvest({"price": waiting}).unstorable
    waiting.close()
    assert why == "field price is a coroutine: did you forget await?"


def test_a_key_is_never_the_repr_of_something() -> None:
    assert harvest(Item(key=ELEMENT, a=1)).unstorable == [
        (PAGE, "its key is an Element: did you mean page.text(…) or element.text()?")
    ]
    assert harvest({"sku": ELEMENT.text}, item_key="sku").unstorable == [
        (PAGE, "its key is a method: did you forget ()?")
    ]


def test_unset_fields_of_a_struct_are_absent() -> None:
    class Partly(msgspec.Struct):
        sku: str
        price: float | msgspec.UnsetType = msgspec.UNSET

    assert items(Partly(sku="a")) == [(PAGE, {"sku": "a"})]


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
    with pytest.raises(UsageError, match="a handler yielded a value of type"):
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
