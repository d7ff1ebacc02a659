"""The page about the Python API: what `shoal` exports, and its errors, from signatures and docstrings."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

import shoal
from markdown_page import page, table
from shoal import errors
from shoal.settings.table import FIELDS

# Groups and the names in them; any further exported class is something that spiders are given.
WRITTEN = ("Spider", "Request", "Item")
SOURCES = ("Pages", "Sitemap", "UrlFile", "Stdin")
# Classes that only shoal makes: their constructors are not shown.
GIVEN = ("Page", "Element", "Session")
# Members that workers need. They have no underscore because other modules use them; a spider should not.
INTERNAL = {
    "Page": {
        "encoded",
        "fillings",
        "first_absolute",
        "follows",
        "unused_follows",
        "parsed",
        "parsed_text",
        "response",
        "rooted",
        "task",
        "turned_away",
    },
    "Session": {"dump", "headers_for", "load", "take"},
}
# A field or plain attribute, described in the docstring of its class: - `name`: text
_DESCRIBED = re.compile(r"^- `(\w+)`: (.+(?:\n  .+)*)", re.MULTILINE)
SIMPLER = (("Callable[..., Any]", "Handler"), ("Mapping[", "dict["), ("NoReturn", "never returns"))
PROPERTIES = (property, functools.cached_property)


def api_page() -> str:
    """Everything a spider can import."""
    exported = [name for name in shoal.__all__ if isinstance(getattr(shoal, name), type)]
    raised = [name for name in exported if issubclass(getattr(shoal, name), BaseException)]
    given = [name for name in exported if name not in (*WRITTEN, *SOURCES, *raised)]
    in_table = {kind.__name__ for kind, _ in _error_tree(errors.ShoalError)}
    parts = [
        "# Python API",
        "What a spider imports: `from shoal import Spider, Item`. `Handler` below stands for a method of the spider "
        "that takes a page; its name as text does as well. How to use it: [Writing handlers](../how-to/handlers.md).",
    ]
    parts += ["## What you write", *_classes(WRITTEN)]
    parts += ["## What you are given", *_classes(sorted(given, key=_given_order))]
    parts += ["## Sources", "For a spider's `start`, alone or in a list with URLs and requests.", *_classes(SOURCES)]
    parts += ["## Errors", *_errors(), *_classes(name for name in raised if name not in in_table)]
    return page(parts)


def undocumented() -> list[str]:
    """Public members without a text of their own."""
    missing = []
    for name in shoal.__all__:
        kind = getattr(shoal, name)
        if isinstance(kind, type):
            missing += [] if _own_doc(kind) else [name]
            missing += [f"{name}.{member}" for member, value in _members(kind).items() if not _own_doc(value)]
            missing += [f"{name}.{member}" for member in _attributes(kind) if not _attribute_text(kind, member)]
    return missing + [kind.__name__ for kind, _ in _error_tree(errors.ShoalError) if not _own_doc(kind)]


def _given_order(name: str) -> tuple[int, str]:
    return (GIVEN.index(name) if name in GIVEN else len(GIVEN), name)


def _classes(names: Any) -> Iterator[str]:
    for name in names:
        yield from _class_parts(name, getattr(shoal, name))


def _class_parts(name: str, kind: type) -> Iterator[str]:
    yield f"### {name}"
    yield _one_line(kind)
    if issubclass(kind, msgspec.Struct):
        yield table(("field", "type", "default", "what it is"), _field_rows(kind))
        return
    if not issubclass(kind, BaseException) and name not in GIVEN and "__init__" in vars(kind):
        yield f"`{name}{_signature(vars(kind)['__init__'])}`"
    members = {member: value for member, value in _members(kind).items() if member not in INTERNAL.get(name, ())}
    rows = list(_attribute_rows(name, kind, members))
    if rows:
        yield table(("attribute", "type", "what it is"), rows)
    methods = [(member, value) for member, value in members.items() if inspect.isfunction(value)]
    if methods:
        yield "\n".join(_method_line(member, value) for member, value in methods)
    internal = sorted(INTERNAL.get(name, set()) & {*_members(kind), *_attributes(kind)})
    if internal:
        named = ", ".join(f"`{member}`" for member in internal)
        yield f"Workers also use {named}: these may change without notice."


def _field_rows(kind: type[msgspec.Struct]) -> Iterator[tuple[str, str, str, str]]:
    for field in msgspec.structs.fields(kind):
        default = "required" if field.required else f"`{_literal(field.default)}`"
        written = _written_type(kind.__annotations__[field.name])
        yield f"`{field.name}`", f"`{written}`", default, _attribute_text(kind, field.name)


def _attribute_rows(name: str, kind: type, members: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for attribute, annotation in _attributes(kind).items():
        if attribute not in INTERNAL.get(name, ()):
            yield f"`{attribute}`", f"`{_written_type(annotation)}`", _attribute_text(kind, attribute)
    for member, value in members.items():
        if isinstance(value, PROPERTIES):
            read = value.fget if isinstance(value, property) else value.func
            returned = _written_type(inspect.get_annotations(read)["return"]) if read else ""
            yield f"`{member}`", f"`{returned}`", _one_line(value)


def _method_line(name: str, function: Callable[..., Any]) -> str:
    prefix = "async " if inspect.iscoroutinefunction(function) else ""
    return f"- `{prefix}{name}{_signature(function)}`<br>{_one_line(function)}"


def _members(kind: type) -> dict[str, Any]:
    """The methods and properties that the class defines itself, in the order of its source."""
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, PROPERTIES))
    }


def _attributes(kind: type) -> dict[str, str]:
    """Plain attributes and their types: annotated in the class, or set by its constructor."""
    found: dict[str, str] = dict(vars(kind).get("__annotations__", {}))
    constructor = vars(kind).get("__init__")
    if constructor is not None and not issubclass(kind, msgspec.Struct):
        given = inspect.get_annotations(constructor)
        source = inspect.getsource(constructor)
        for name, annotation, value in re.findall(r"^\s+self\.([a-z]\w*)(?:: ([^=]+))? = (.+)$", source, re.MULTILINE):
            found[name] = annotation or given.get(value) or value.partition("(")[0]
    return {name: text for name, text in found.items() if not name.startswith("_")}


def _attribute_text(kind: type, attribute: str) -> str:
    """What the class says about its attribute; for a spider's settings, their own help."""
    if attribute in INTERNAL.get(kind.__name__, ()):
        return "for workers"
    described = dict(_DESCRIBED.findall(inspect.cleandoc(_own_doc(kind))))
    if attribute not in described and kind is shoal.Spider and attribute in FIELDS:
        helps = (getattr(meta, "description", None) for meta in FIELDS[attribute].type.__metadata__)
        return "setting: " + next(filter(None, helps), "")
    return _folded(described.get(attribute, ""))


def _errors() -> Iterator[str]:
    yield (
        "What shoal itself raises is in `shoal.errors`. A command that ends with one of these prints its message, one "
        "line that says what to do, and has its return code."
    )
    rows = [
        ("&nbsp;" * 4 * depth + f"`{kind.__name__}`", str(kind.return_code), _one_line(kind))
        for kind, depth in _error_tree(errors.ShoalError)
    ]
    yield table(("error", "return code", "meaning"), rows)


def _error_tree(kind: type[errors.ShoalError], depth: int = 0) -> Iterator[tuple[type[errors.ShoalError], int]]:
    """The error and those below it that shoal.errors has, each with its depth in the tree."""
    yield kind, depth
    below = [value for value in vars(errors).values() if isinstance(value, type) and kind in value.__bases__]
    for inner in below:
        yield from _error_tree(inner, depth + 1)


def _signature(function: Callable[..., Any]) -> str:
    """The signature without `self`, with types as people write them."""
    signature = inspect.signature(function)
    shown, is_keyword_only = [], False
    for parameter in list(signature.parameters.values())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            shown.append("*")
        shown.append(_parameter(parameter))
    returned = signature.return_annotation
    arrow = "" if returned in ("None", "Any") else f" → {_written_type(returned)}"
    return f"({', '.join(shown)}){arrow}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    kind = "" if parameter.annotation in ("Any", parameter.empty) else f": {_written_type(parameter.annotation)}"
    equals = " = " if kind else "="
    default = "" if parameter.default is parameter.empty else equals + _literal(parameter.default)
    return f"{stars}{parameter.name}{kind}{default}"


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _written_type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\bClassVar\[(.*)\]$", r"\1", text)
    text = re.sub(r"\b(?:collections\.abc|typing|shoal\.\w+)\.", "", text)
    for noisy, simple in SIMPLER:
        text = text.replace(noisy, simple)
    return text


def _own_doc(value: Any) -> str:
    """The docstring that is written there, not an inherited one."""
    return str(value.__doc__ or "")


def _one_line(value: Any) -> str:
    """The docstring without the attributes it describes: they have a table."""
    return _folded(_DESCRIBED.sub("", inspect.cleandoc(_own_doc(value))))


def _folded(text: str) -> str:
    # GitHub would take <base> for an element.
    return " ".join(text.split()).replace("<", "&lt;")
