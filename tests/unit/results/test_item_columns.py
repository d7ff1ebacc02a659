"""The columns of items: from the fields that are seen, and from the fields of a class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from canned_store import CannedStore

from shoal.errors import UsageError
from shoal.results.item_columns import FieldsSeen, fields_of_class, fields_seen
from shoal.store.item_views import MAX_COLUMNS

SHOP = """
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NewType, TypedDict
from uuid import UUID

import attrs
import msgspec
from pydantic import BaseModel

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
    meta: Annotated[int, "pages"] = 0

class Struct(msgspec.Struct, rename="camel"):
    first_name: str
    age: int = 0

@attrs.define
class Attrs:
    price: float

class Model(BaseModel):
    price: Decimal | None = None

class Typed(TypedDict):
    price: int

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


def test_a_class_says_what_its_columns_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop_items.py").write_text(SHOP)
    assert dict(fields_of_class("shop_items.py:Book")) == {
        "title": "text", "pages": "integer", "price": "number", "exact": "decimal", "stock": "boolean", "seen": "time",
        "day": "date", "sku": "text", "size": "integer", "kind": "text", "id": "text", "took": "text", "raw": "text",
        "tags": "json", "offers": "json", "any": "json", "either": "mixed", "number": "number", "nested": "json",
        "meta": "integer",
    }  # fmt: skip
    assert fields_of_class("shop_items.py:Struct") == (("firstName", "text"), ("age", "integer"))
    assert fields_of_class("shop_items.py:Attrs") == (("price", "number"),)
    assert fields_of_class("shop_items:Model") == (("price", "decimal"),)
    assert fields_of_class("shop_items:Typed") == (("price", "integer"),)


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
