"""The OpenAPI document, made from the table of operations and the types of their bodies and answers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from shoal.serve.access import COOKIE, SAFE_METHODS, is_open
from shoal.serve.answers import JSON
from shoal.serve.api.operations import Operation
from shoal.serve.api.shapes import ErrorAnswer, NoQuery
from shoal.version import __version__

REFERENCE = "#/components/schemas/{name}"
DESCRIPTION = (
    "See and steer crawls. Errors have one line that names what to do. Lists are paged: give `next` of an answer as "
    "`after` of the next request, until it is null."
)
PATH_TEXTS = {
    "crawl": "the id of a crawl",
    "host": 'a host, as example.com or "example.com via POOL"',
    "schedule": "the name of a schedule",
}
_PATH_NAME = re.compile(r"{(\w+)}")


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The whole document."""
    kinds = list(dict.fromkeys(_kinds(operations)))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    by_kind = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        entry = _entry(operation, by_kind, components)
        paths.setdefault(operation.full_path, {})[operation.method.lower()] = entry
    return {
        "openapi": "3.1.0",
        "info": {"title": "shoal", "version": __version__, "description": DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": {name: components[name] for name in sorted(components)},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            },
        },
        "security": [{"token": []}, {"session": []}, {}],
    }


def _kinds(operations: Sequence[Operation]) -> Iterator[type]:
    yield ErrorAnswer
    for operation in operations:
        for kind in (operation.query, operation.body, operation.answer):
            if isinstance(kind, type) and kind is not NoQuery:
                yield kind


def _entry(operation: Operation, by_kind: dict[type, Any], components: dict[str, Any]) -> dict[str, Any]:
    text = inspect.getdoc(operation.handle) or ""
    entry: dict[str, Any] = {
        "operationId": operation.name,
        "summary": text.partition("\n")[0],
        "parameters": [*_path_parameters(operation), *_query_parameters(operation, components)],
        "responses": {str(status): answer for status, answer in _responses(operation, by_kind)},
    }
    if operation.body is not None:
        entry["requestBody"] = {"required": True, "content": _body(operation.body, by_kind)}
    if is_open(operation.full_path):
        entry["security"] = []
    return entry


def _path_parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    for name in _PATH_NAME.findall(operation.path):
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "description": PATH_TEXTS[name],
            "schema": {"type": "string", "minLength": 1},
        }


def _query_parameters(operation: Operation, components: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if operation.query is NoQuery:
        return
    schema = components[operation.query.__name__]
    for name, value in schema["properties"].items():
        yield {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "schema": _without_null(value),
        }


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter's schema. It does not allow null: a query has no text for it."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    kept = {name: value for name, value in schema.items() if name != "anyOf" and not _is_none(name, value)}
    return {**kept, **choices[0]} if len(choices) == 1 else {**kept, **({"anyOf": choices} if choices else {})}


def _is_none(name: str, value: object) -> bool:
    return name == "default" and value is None


def _body(body: type[msgspec.Struct] | tuple[str, ...], by_kind: dict[type, Any]) -> dict[str, Any]:
    if isinstance(body, tuple):
        return {media: {"schema": {"type": "string"}} for media in body}
    return {JSON: {"schema": by_kind[body]}}


def _responses(operation: Operation, by_kind: dict[type, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    if isinstance(operation.answer, str):
        content: dict[str, Any] = {operation.answer: {"schema": {"type": "string"}}}
    elif operation.answer is None:
        content = {}
    else:
        content = {JSON: {"schema": by_kind[operation.answer]}}
    yield (
        operation.status,
        {"description": HTTPStatus(operation.status).phrase, **({"content": content} if content else {})},
    )
    for status in sorted(set(_errors(operation)) - {operation.status}):
        schema = by_kind[ErrorAnswer]
        if operation.refusal is not None:
            schema = {"anyOf": [by_kind[operation.refusal], schema]}
        yield status, {"description": HTTPStatus(status).phrase, "content": {JSON: {"schema": schema}}}


def _errors(operation: Operation) -> Iterator[int]:
    yield from operation.errors
    yield from (400, 403, 422)
    if not is_open(operation.full_path):
        yield from (401, 429, 503)
    if operation.method not in SAFE_METHODS and operation.body is not None:
        yield from (413, 415)
