"""The columns of a spider's items: from a class with types, or from the fields of stored items."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, NewType, NotRequired, Required, Union, get_args, get_origin

import msgspec

from shoal.errors import UsageError
from shoal.spider.loading import load_module
from shoal.store.base import ItemFilter, Store
from shoal.store.item_views import MAX_COLUMNS, Kind
from shoal.text.near_names import did_you_mean

SAMPLE: Final = 200_000
# Items may have made-up names of fields: bound them.
FIELDS_KEPT: Final = 20_000
SPIDERS_READ: Final = 1000
# Skips through the index, one step per spider.
_SPIDERS: Final = """
    WITH RECURSIVE found (spider) AS (
        SELECT min(spider) FROM items
        UNION ALL SELECT (SELECT min(spider) FROM items WHERE items.spider > found.spider) FROM found
        WHERE found.spider IS NOT NULL)
    SELECT spider FROM found WHERE spider IS NOT NULL"""

_BOOL, _INT, _LONG, _FLOAT, _TEXT, _NESTED = 1, 2, 4, 8, 16, 32
_BITS: Final[dict[type, int]] = {
    type(None): 0,
    str: _TEXT,
    bool: _BOOL,
    float: _FLOAT,
    list: _NESTED,
    dict: _NESTED,
}
_PLAIN: Final[tuple[tuple[type, Kind], ...]] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (Decimal, "decimal"),
    (datetime, "time"),
    (date, "date"),
    (str, "text"),
)
# Python types that are stored as text.
_TEXTS: Final = ("uuid.UUID", "pathlib.PurePath", "datetime.timedelta", "datetime.time", "builtins.bytes")
# Types of pydantic that are classes of their own.
_OF_PYDANTIC: Final[dict[str, Kind]] = {
    **dict.fromkeys(("AwareDatetime", "NaiveDatetime", "PastDatetime", "FutureDatetime"), "time"),
    **dict.fromkeys(("PastDate", "FutureDate"), "date"),
    **dict.fromkeys(("SecretStr", "SecretBytes"), "text"),
}
_MODULES_OF_TEXTS: Final = ("pydantic.networks", "pydantic_core._pydantic_core", "ipaddress")
_QUALIFIERS: Final = (Annotated, Required, NotRequired, Final)
_NO_VALUE: Final = (type(None), msgspec.UnsetType)


class FieldsSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a spider's items and the kinds of their values; the most frequent if there are too many. `looked`
    of `items` items were read; `left_out` fields have no column."""

    fields: tuple[tuple[str, Kind], ...]
    looked: int
    items: int
    left_out: int = 0


async def fields_seen(store: Store, spider: str, *, sample: int = SAMPLE) -> FieldsSeen:
    """Read items of the spider and collect their fields; at most `sample` items, 0: all."""
    bits: dict[str, int] = {}
    counts: dict[str, int] = {}
    looked, unkept = 0, 0
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    async for item in store.items(ItemFilter(spider=spider)):
        looked += 1
        for name, value in decode(item.data).items():
            if name not in bits and len(bits) >= FIELDS_KEPT:
                unkept += 1
                continue
            bits[name] = bits.get(name, 0) | _bits_of(value)
            counts[name] = counts.get(name, 0) + 1
        if looked == sample:
            break
    kept = sorted(bits, key=lambda name: counts[name], reverse=True)[:MAX_COLUMNS]
    chosen = set(kept)
    return FieldsSeen(
        fields=tuple((name, _kind_seen(seen)) for name, seen in bits.items() if name in chosen),
        looked=looked,
        items=looked if looked != sample else await store.count_items(ItemFilter(spider=spider)),
        left_out=len(bits) - len(kept) + unkept,
    )


async def fields_missing(store: Store, spider: str, fields: Iterable[str], *, sample: int) -> tuple[list[str], int]:
    """The fields that none of a spider's first items has, and how many items were read."""
    missing, looked = dict.fromkeys(fields), 0
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    async for item in store.items(ItemFilter(spider=spider)):
        looked += 1
        for name in decode(item.data):
            missing.pop(name, None)
        if looked == sample or not missing:
            break
    return list(missing), looked


async def spiders_with_items(store: Store) -> list[str]:
    """The spiders with items in a store, found without reading items; some of them if there are very many."""
    return [spider for (spider,) in (await store.query(_SPIDERS, limit=SPIDERS_READ)).rows]


def _bits_of(value: Any) -> int:
    found = _BITS.get(type(value))
    if found is not None:
        return found
    return _INT if -(2**63) <= value < 2**63 else _LONG


def _kind_seen(bits: int) -> Kind:
    if bits & _NESTED:
        return "json"
    exact: dict[int, Kind] = {_TEXT: "text", _BOOL: "boolean", _INT: "integer", _FLOAT: "number"}
    if bits in exact:
        return exact[bits]
    if bits and not bits & ~(_INT | _FLOAT):
        return "number"
    # A field that was always null may hold anything later.
    return "decimal" if bits and not bits & ~(_INT | _LONG) else "mixed"


def fields_of_class(reference: str) -> tuple[tuple[str, Kind], ...]:
    """The fields of a dataclass, a msgspec struct, an attrs class, a pydantic model or a TypedDict: `shop.py:Book` or
    `shop.items:Book`."""
    source, _, name = reference.rpartition(":")
    if not source or not name:
        raise UsageError(f"--type {reference} names no class: write FILE.py:CLASS or package.module:CLASS")
    module = load_module(source)
    found = getattr(module, name, None)
    if not isinstance(found, type):
        known = [one for one, value in vars(module).items() if isinstance(value, type)]
        raise UsageError(f"{source} has no class {name!r}; {did_you_mean(name, known, otherwise='check the name')}")
    hints = _hints(found, reference)
    if not hints:
        raise UsageError(
            f"{reference} is a class without fields: give a dataclass, a msgspec struct, an attrs class, a pydantic"
            " model or a TypedDict"
        )
    return tuple((name, _kind_of(hint)) for name, hint in hints.items())


def _hints(found: type, reference: str) -> dict[str, Any]:
    """The fields of a class by name, with their types."""
    try:
        hints = typing.get_type_hints(found, include_extras=True)
        if hasattr(found, "model_fields"):
            return _of_model(found, hints)
    except Exception as error:
        raise UsageError(f"the types of {reference} cannot be read: {type(error).__name__}: {error}") from None
    return {name: hints.get(name, Any) for name in _field_names(found)}


def _field_names(found: type) -> list[str]:
    if dataclasses.is_dataclass(found):
        return [field.name for field in dataclasses.fields(found)]
    if issubclass(found, msgspec.Struct):
        # Not msgspec's encoded names: items use the names of the attributes.
        return [field.name for field in msgspec.structs.fields(found)]
    if attributes := getattr(found, "__attrs_attrs__", None):
        return [field.name for field in attributes]
    return list(found.__annotations__) if typing.is_typeddict(found) else []


def _of_model(model: Any, hints: dict[str, Any]) -> dict[str, Any]:
    """The fields of a pydantic model's dump, computed fields included."""
    types_of = {name: hints.get(name, Any) for name in model.model_fields}
    types_of |= {name: field.return_type for name, field in model.model_computed_fields.items()}
    if not model.model_config.get("serialize_by_alias"):
        return types_of
    fields = model.model_fields | model.model_computed_fields
    aliases = {name: getattr(field, "serialization_alias", None) or field.alias for name, field in fields.items()}
    return {aliases[name] or name: hint for name, hint in types_of.items()}


def _kind_of(hint: Any) -> Kind:
    origin, parts = get_origin(hint), get_args(hint)
    if isinstance(hint, NewType):
        return _kind_of(hint.__supertype__)
    if origin in _QUALIFIERS:
        return _kind_of(parts[0])
    if origin is Literal:
        return _one_of({_kind_of(type(value)) for value in parts if value is not None})
    if origin in (Union, types.UnionType):
        return _one_of({_kind_of(part) for part in parts if part not in _NO_VALUE})
    if not isinstance(hint, type):
        return "json"
    if issubclass(hint, enum.Enum):
        return _one_of({_kind_of(type(member.value)) for member in hint})
    return _kind_of_class(hint)


def _kind_of_class(hint: type) -> Kind:
    if hint.__module__ == "pydantic.types" and hint.__name__ in _OF_PYDANTIC:
        return _OF_PYDANTIC[hint.__name__]
    if any(
        base.__module__ in _MODULES_OF_TEXTS or f"{base.__module__}.{base.__qualname__}" in _TEXTS
        for base in hint.__mro__
    ):
        return "text"
    return next((kind for base, kind in _PLAIN if issubclass(hint, base)), "json")


def _one_of(kinds: set[Kind]) -> Kind:
    """The kind that holds values of all these kinds."""
    if len(kinds) == 1:
        return next(iter(kinds))
    if kinds == {"integer", "number"}:
        return "number"
    if kinds and kinds <= {"integer", "number", "decimal"}:
        return "decimal"
    if kinds and not kinds & {"json"}:
        return "mixed"
    return "json"
