"""Encodes the fields of an item as JSON, or says in one line which field cannot be encoded and what to write."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from pathlib import PurePath
from typing import Any

import msgspec
from selectolax.lexbor import LexborNode

from shoal.errors import UsageError
from shoal.spider.element import Element
from shoal.spider.follow import Follow
from shoal.spider.page import Page


class NoJson(Exception):  # noqa: N818 -- reads as what is wrong
    """A value of an item cannot be encoded as JSON."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def is_item(output: Any) -> bool:
    """Whether this is one item (which may be iterable, too)."""
    return isinstance(output, Mapping | msgspec.Struct) or dataclasses.is_dataclass(output) or _is_model(output)


def fields_of(output: Any) -> Mapping[str, Any]:
    """The fields of a mapping, dataclass, msgspec struct or pydantic model."""
    if isinstance(output, Mapping):
        return output
    if isinstance(output, msgspec.Struct):
        return {name: value for name, value in msgspec.structs.asdict(output).items() if value is not msgspec.UNSET}
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        # Not `asdict`: it copies every value, and an element or a generator cannot be copied.
        return {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    if _is_model(output):
        return _dumped(output)
    raise UsageError(
        f"a handler yielded a value of type {type(output).__name__}: yield requests, items, mappings, dataclasses,"
        f" pydantic models or msgspec structs"
    )


def encoded(fields: Mapping[str, Any]) -> bytes | str:
    """The fields as JSON; or as text why they cannot be encoded: after an exception the page would be retried."""
    try:
        data = _ENCODER.encode(fields)
    except NoJson as error:
        return _no_json(fields, error.value)
    except UnicodeEncodeError:
        return f"half of a surrogate pair in {_first(fields, _is_half)}"
    except RecursionError:
        return "its fields are nested too deep"
    # The encoder writes NaN and infinity as null: the fields are searched only if there is a null.
    where = _first(fields, _is_not_finite) if b"null" in data else ""
    return f"a number that is not finite in {where}" if where else data


def key_text(key: Any) -> str:
    """An item's key as text. Raises NoJson for an object whose text is no key, such as <Element h1>."""
    if type(key) is not str:
        msgspec.json.encode(key, enc_hook=_plain)
    return str(key)


def described(value: Any) -> str:
    """What a value without JSON is, and what to write instead."""
    for kind, text in _ADVICE:
        if isinstance(value, kind):
            return text
    if inspect.iscoroutine(value):
        return "a coroutine: did you forget await?"
    if callable(value):
        return f"the class {value.__name__}" if isinstance(value, type) else "a method: did you forget ()?"
    if inspect.isgenerator(value):
        return "a generator: write list(…)"
    if isinstance(value, Iterator):
        return "an iterator: write list(…)"
    kind_name = type(value).__name__
    article = "an" if kind_name[:1].lower() in "aeiou" else "a"
    return f"{article} {kind_name}, which has no meaning in JSON: write its text or its number, such as str(…)"


_ADVICE: tuple[tuple[type, str], ...] = (
    (Element, "an Element: did you mean page.text(…) or element.text()?"),
    (LexborNode, "a node of the parser: did you mean .text()?"),
    (Page, "the page itself: did you mean page.text(…) or page.url?"),
    (Follow, "the result of page.follow: yield it by itself; page.links(…) returns URLs"),
)


def _plain(value: Any) -> Any:
    """The encoder's hook: a value of another type as one that it can encode. Raises NoJson."""
    for kind in (str, int, float):
        # Subclasses, such as lxml's strings. None and booleans come here only as names of fields.
        if isinstance(value, kind) and value is not True and value is not False:
            return kind(value)
    if value is None or isinstance(value, bool):
        return msgspec.json.encode(value).decode()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, PurePath):
        return str(value)
    # A tuple comes here only as the name of a field.
    if isinstance(value, Sequence | Set | ValuesView) and not isinstance(value, tuple):
        return list(value)
    if _is_model(value):
        return _dumped(value)
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    raise NoJson(value)


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)


def _no_json(fields: Mapping[str, Any], value: Any) -> str:
    where = _first(fields, lambda part: part is value)
    if where.startswith("the name of a field"):
        return f"{where} is {described(value)}"
    return f"field {where} is {described(value)}" if where else f"one of its fields is {described(value)}"


def _first(value: Any, is_meant: Callable[[Any], bool], path: str = "") -> str:
    """The path of the first value for which `is_meant` holds, as field.field; empty: none."""
    if is_meant(value):
        return path or "its fields"
    for name, part in _parts(value):
        if is_meant(name):
            return f"the name of a field of {path or 'its own'}"
        found = _first(part, is_meant, f"{path}.{name}" if path else str(name))
        if found:
            return found
    return ""


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if is_item(value):
        return () if isinstance(value, type) else fields_of(value).items()
    if isinstance(value, str | bytes | bytearray | memoryview):
        return ()
    return enumerate(value) if isinstance(value, Sequence | Set | ValuesView) else ()


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _is_half(value: Any) -> bool:
    return isinstance(value, str) and not value.isascii() and value != value.encode("utf-8", "replace").decode()


def _is_model(output: Any) -> bool:
    return hasattr(output, "model_dump") and not isinstance(output, type)


def _dumped(model: Any) -> dict[str, Any]:
    """The fields of a pydantic model; unconverted if one has no JSON, so that the error can name it."""
    try:
        return dict(model.model_dump(mode="json"))
    except ValueError:
        return dict(model.model_dump())
