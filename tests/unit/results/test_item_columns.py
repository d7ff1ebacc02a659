"""The columns of items: from the fields that are seen, and from the fields of a class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from canned_store import CannedStore

from shoal.errors import UsageError
from shoal.journey.item_fields import encoded, fields_of
from shoal.results.item_columns import FieldsSeen, fields_of_class, fields_seen
from shoal.spider.loading import load_module
from shoal.store.item_views import MAX_COLUMNS, named_columns

SHOP = """
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NewType, NotRequired, TypedDict
from uuid import UUID

import attrs
import msgspec
from pydantic import AwareDatetime, BaseModel, Field, HttpUrl, PastDate, computed_field

Sku = NewType("Sku", str)
class Size(enum.Enum):
    SMALL = 1
    LARGE = 2

@dataclass
class Book:
    title: str
    pages: int | None
    price: float
    exact: Decimal
    stock: bool
    seen: datetime
    day: date
    sku: Sku
    size: Size
    kind: Literal["new", "used"]
    id: UUID
    took: timedelta
    raw: bytes
    tags: list[str]
    offers: dict[str, int]
    any: Any
    either: int | str
    number: int | float
    nested: int | list[int]
    sum: Decimal | int
    meta: Annotated[int, "pages"] = 0

class Struct(msgspec.Struct, rename="camel"):
    first_name: str
    age: int | msgspec.UnsetType = msgspec.UNSET

@attrs.define
class Attrs:
    price: float

class Model(BaseModel):
    price: Decimal | None = Field(default=None, alias="Price")
    at: AwareDatetime | None = None
    day: PastDate | None = None
    site: HttpUrl | None = None
    @computed_field
    @property
    def pages(self) -> int:
        return 3

class Aliased(BaseModel):
    model_config = {"serialize_by_alias": True, "populate_by_name": True}
    price: int = Field(default=1, alias="Price")

class Typed(TypedDict):
    price: NotRequired[int]

class Plain:
    def __init__(self) -> None:
        self.price = 1

@dataclass
class Broken:
    price: "NoSuchType"
"""


async def seen(*items: dict[str, Any], **more: Any) -> FieldsSeen:
    return await fields_seen(CannedStore(*items), "s", **more)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", None, "b"], "text"),
        ([1, 2], "integer"),
        ([1, 2.5], "number"),
        ([2.5], "number"),
        ([True, None], "boolean"),
        ([1, 2**80], "decimal"),
        ([2.5, 2**80], "mixed"),
        (["a", 1], "mixed"),
        ([True, 1], "mixed"),
        ([None], "mixed"),
        ([["a"], None], "json"),
        ([{"a": 1}, "text"], "json"),
    ],
)
async def test_the_type_of_a_column_takes_every_value_that_was_seen(values: list[Any], kind: str) -> None:
    assert (await seen(*({"f": value} for value in values))).fields == (("f", kind),)


async def test_a_sample_says_of_how_many_items_it_is() -> None:
    items = [{"a": 1}, {"b": 1}, {"a": "late"}]
    assert await seen(*items) == FieldsSeen(fields=(("a", "mixed"), ("b", "integer")), looked=3, items=3)
    some = await seen(*items, sample=2)
    assert (some.fields, some.looked) == ((("a", "integer"), ("b", "integer")), 2)


async def test_of_too_many_fields_the_most_frequent_ones_are_columns() -> None:
    items = [{"title": 1, f"rare {n}": 1} for n in range(2 * MAX_COLUMNS)]
    found = await seen(*items)
    assert len(found.fields) == MAX_COLUMNS
    assert found.fields[0] == ("title", "integer")
    assert found.left_out == MAX_COLUMNS + 1


def test_a_field_keeps_the_name_of_its_column_whichever_item_comes_first() -> None:
    first = named_columns([("title", "text"), ("Title", "text")])
    again = named_columns([("TITLE", "text"), ("Title", "text"), ("title", "integer")], former=first)
    names = {column.field: column.name for column in again}
    assert names == {"title": "title", "Title": "Title_2", "TITLE": "TITLE_3"}


def test_a_class_says_what_its_columns_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop_items.py").write_text(SHOP)
    assert dict(fields_of_class("shop_items.py:Book")) == {
        "title": "text", "pages": "integer", "price": "number", "exact": "decimal", "stock": "boolean", "seen": "time",
        "day": "date", "sku": "text", "size": "integer", "kind": "text", "id": "text", "took": "text", "raw": "text",
        "tags": "json", "offers": "json", "any": "json", "either": "mixed", "number": "number", "nested": "json",
        "sum": "decimal", "meta": "integer",
    }  # fmt: skip
    assert fields_of_class("shop_items.py:Struct") == (("first_name", "text"), ("age", "integer"))
    assert fields_of_class("shop_items.py:Attrs") == (("price", "number"),)
    assert dict(fields_of_class("shop_items:Model")) == {
        "price": "decimal", "at": "time", "day": "date", "site": "text", "pages": "integer",
    }  # fmt: skip
    assert fields_of_class("shop_items:Typed") == (("price", "integer"),)


def test_columns_have_the_names_that_a_yielded_object_has_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop_items.py").write_text(SHOP)
    shop = load_module("shop_items.py")
    for name, given in (("Struct", {"first_name": "A", "age": 1}), ("Model", {}), ("Aliased", {"price": 1})):
        stored = msgspec.json.decode(encoded(fields_of(getattr(shop, name)(**given))))
        assert [field for field, _ in fields_of_class(f"shop_items.py:{name}")] == list(stored)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("shop_items.py", "names no class"),
        ("shop_items.py:Bok", "did you mean 'Book'?"),
        ("shop_items.py:Plain", "is a class without fields: give a dataclass"),
        ("shop_items.py:Broken", "NameError"),
        ("nowhere.py:Book", "nowhere.py"),
    ],
)
def test_a_class_that_gives_no_columns_is_refused(
    reference: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop_items.py").write_text(SHOP)
    with pytest.raises(UsageError, match=said.replace("?", r"\?")):
        fields_of_class(reference)
