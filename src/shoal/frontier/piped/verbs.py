"""The verbs of a frontier as calls: their arguments by type, as the contract's signatures have them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from shoal.frontier.base import Frontier
from shoal.frontier.piped.messages import encoded
from shoal.model import Dead, Done, Handed, Released, Result, Retry

# What a worker says to its frontier. The rest is for people and for the coordinator, who have the frontier itself.
WORKER_VERBS: Final = frozenset(
    {
        "beat", "crawls", "evict", "extend", "keep_session", "lease", "open_crawl", "progress", "put", "reserve",
        "rules", "session", "set_state", "settle", "workers",
    }
)  # fmt: skip
ALL_VERBS: Final = frozenset(
    name for name, member in vars(Frontier).items() if inspect.iscoroutinefunction(member) and name != "close"
)


class Settling(msgspec.Struct, frozen=True):
    """The results of a settle call by kind, each with its index in the call: as one list their kinds would be lost."""

    done: list[tuple[int, Done]] = []
    retry: list[tuple[int, Retry]] = []
    dead: list[tuple[int, Dead]] = []
    released: list[tuple[int, Released]] = []
    handed: list[tuple[int, Handed]] = []

    @classmethod
    def of(cls, results: Sequence[Result]) -> Settling:
        kinds: tuple[list[Any], ...] = ([], [], [], [], [])
        for index, result in enumerate(results):
            match result:
                case Done():
                    kinds[0].append((index, result))
                case Retry():
                    kinds[1].append((index, result))
                case Dead():
                    kinds[2].append((index, result))
                case Released():
                    kinds[3].append((index, result))
                case Handed():
                    kinds[4].append((index, result))
                case _:
                    raise TypeError(f"{result!r} is not a result")
        return cls(*kinds)

    def results(self) -> list[Result]:
        """The results in the order of the call."""
        by_index: dict[int, Result] = {}
        for kind in (self.done, self.retry, self.dead, self.released, self.handed):
            by_index.update(kind)
        return [by_index[index] for index in sorted(by_index)]


def sendable(results: Sequence[Result]) -> tuple[list[int], dict[int, str]]:
    """The indexes of the results that can go through a pipe, and why the others cannot."""
    good: list[int] = []
    failed: dict[int, str] = {}
    for index, result in enumerate(results):
        try:
            if not isinstance(result, Result):
                raise TypeError(f"{result!r} is not a result")
            encoded(result)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            failed[index] = str(error)
        else:
            good.append(index)
    return good, failed


@lru_cache(maxsize=64)
def arguments_of(verb: str) -> msgspec.msgpack.Decoder[Any]:
    """Decodes the arguments of a verb to a struct with a field for each of them."""
    if verb == "settle":
        return msgspec.msgpack.Decoder(Settling)
    method = getattr(Frontier, verb)
    hints = typing.get_type_hints(method)
    fields: list[Any] = []
    for name, parameter in inspect.signature(method).parameters.items():
        if name == "self":
            continue
        default = msgspec.NODEFAULT if parameter.default is parameter.empty else parameter.default
        fields.append((name, hints[name], default))
    return msgspec.msgpack.Decoder(msgspec.defstruct(verb, fields, kw_only=True))


def called_with(verb: str, arguments: msgspec.Raw) -> dict[str, Any]:
    """The arguments of a call, by name."""
    found = arguments_of(verb).decode(arguments)
    if isinstance(found, Settling):
        return {"results": found.results()}
    return {name: getattr(found, name) for name in found.__struct_fields__}
