"""The scripts of the Redis frontier: one Lua file per verb, with the parts that it needs put before it.

A verb or a part names its direct needs in a line `-- needs: crawl lanes`, a part the names that it defines for others
in a line `-- gives: find_lane need_lane`. The parts come in the order in which they need each other, each once, in a
block of its own: its other names stay inside, as a script has room for two hundred. A block begins with the constants
that it uses, as Python has them.

Making the functions of a part costs time in every call of a script. A part that gives one table, and that few calls
need, says `-- lazy`: its block is run when one of its names is looked up for the first time.

Numbers and words of the stored format that both Python and the Lua scripts need.

What lies under which key: `docs/explanation/redis-layout.md`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

import msgspec

from shoal.frontier.rules import constants, hosts, tasks
from shoal.model import NO_EXIT, REGION, STAGE, VIA

# The version of the keys of a crawl and of their contents: field `layout` of its record. Raise it when scripts of the
# former version could not go on with a crawl of the new one, or the other way round.
# 2: tasks of a kind wait in queues of their own (`kq:KIND:LANE`, `ready:KIND`), where older scripts find none.
# 3: the crawls' shards of one number lie in one slot, under other prefixes (see shards.py).
LAYOUT_VERSION: Final = 3
UNKNOWN_LAYOUT: Final = -1  # of records whose field is no number
UNNUMBERED_LAYOUT: Final = 1  # of records without the field: they were written before it was added

Constant = int | float | str | tuple[str, ...]

SEQUENCES: Final = 2**31  # per step of priority: order = sequence - priority * SEQUENCES stays exact in a double
LANE_RECORD: Final = ">" + 17 * "d"  # the numbers of a lane; what they are: lua/parts/lanes.lua
VERDICTS: Final = ("ok", "blocked", "failed", "used", "unused")  # a report names its verdict by the index here

# By the name that scripts use. Only the names that a script uses are written into it.
CONSTANTS: Final[dict[str, Constant]] = {
    **{name: value for name, value in vars(constants).items() if name.isupper()},
    "APART": hosts.APART,
    "ALONE": hosts.ALONE,
    "SHARED": hosts.SHARED,
    "SEQUENCES": SEQUENCES,
    "VERDICTS": VERDICTS,
    "LANE_RECORD": LANE_RECORD,
    **{name: value for name, value in vars(tasks).items() if name.isupper() and isinstance(value, str)},
    "NO_EXIT": NO_EXIT,
    "VIA": VIA,
    "STAGE": STAGE,
    "REGION": REGION,
}


_NEEDS = re.compile(r"^-- needs: (.*)$", re.MULTILINE)
_GIVES = re.compile(r"^-- gives: (.*)$", re.MULTILINE)
_LAZY = re.compile(r"^-- lazy$", re.MULTILINE)
_COMMENT = re.compile(r"--.*$", re.MULTILINE)
_NAME = re.compile(r"\b[A-Z][A-Z0-9_]*\b")


class Script(msgspec.Struct, frozen=True):
    """A script's text and the name under which the server keeps it."""

    text: str
    sha: str


class Part(msgspec.Struct, frozen=True):
    """A part as scripts hold it, and the parts that it needs."""

    block: str
    needs: list[str]


class LuaFolder:
    """Puts scripts together from a folder with `verbs/` and `parts/`. Each part is read once, whatever needs it."""

    def __init__(self, folder: Traversable | None = None) -> None:
        self._folder = folder or resources.files("shoal.frontier.redis").joinpath("lua")
        self._parts: dict[str, Part] = {}

    def scripts(self) -> dict[str, Script]:
        """Every verb's script, by its name."""
        return {verb: self.script(verb) for verb in self.names("verbs")}

    def script(self, verb: str) -> Script:
        """The script of one verb. Raises ValueError when its parts need each other in a circle, or do not exist."""
        whole = self.assembled(self.text("verbs", verb), name=verb)
        return Script(whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest())

    def names(self, kind: str) -> list[str]:
        """The names of the verbs or of the parts."""
        files = self._folder.joinpath(kind).iterdir()
        return sorted(file.name.removesuffix(".lua") for file in files if file.name.endswith(".lua"))

    def text(self, kind: str, name: str) -> str:
        """The text of a verb or of a part."""
        return self._folder.joinpath(kind, f"{name}.lua").read_text(encoding="utf-8")

    def assembled(self, text: str, *, name: str) -> str:
        """A verb's text behind a block for every part that it needs, the needs of each part before it."""
        blocks: dict[str, str] = {}
        for need in needs_of(text):
            self._add_part(need, blocks, path=(name,))
        return "\n".join([*blocks.values(), prelude(text, CONSTANTS) + text])

    def _add_part(self, name: str, blocks: dict[str, str], *, path: tuple[str, ...]) -> None:
        """Add a part behind its own needs. The path leads from the verb to it."""
        if name in path[1:]:
            circle = " → ".join([*path[path.index(name, 1) :], name])
            raise ValueError(f"Lua parts need each other in a circle: {circle}")
        if name in blocks:
            return
        part = self._part(name, needed_by=path[-1])
        for need in part.needs:
            self._add_part(need, blocks, path=(*path, name))
        blocks[name] = part.block

    def _part(self, name: str, *, needed_by: str) -> Part:
        part = self._parts.get(name)
        if part is None:
            try:
                text = self.text("parts", name)
            except FileNotFoundError:
                raise ValueError(f"there is no Lua part {name!r}, which {needed_by} needs") from None
            block = _block(text)
            part = self._parts[name] = Part(block, needs_of(text))
        return part


@cache
def shipped_scripts() -> Mapping[str, Script]:
    """The scripts of this package by verb, put together once: a run opens several connections, a few at its end."""
    return LuaFolder().scripts()


def needs_of(text: str) -> list[str]:
    """The parts that a verb or a part needs."""
    return " ".join(_NEEDS.findall(text)).split()


def gives_of(text: str) -> list[str]:
    """The names that a part defines for others."""
    return " ".join(_GIVES.findall(text)).split()


def prelude(code: str, constants: Mapping[str, Constant]) -> str:
    """The line that gives a text the constants that it uses; "" when it uses none."""
    used = set(_NAME.findall(_COMMENT.sub("", code)))
    names = [name for name in constants if name in used]
    values = [_in_lua(constants[name]) for name in names]
    return f"local {', '.join(names)} = {', '.join(values)}\n" if names else ""


def _block(text: str) -> str:
    """A part as scripts hold it."""
    given, code = ", ".join(gives_of(text)), prelude(text, CONSTANTS) + text
    if not _LAZY.search(text):
        return f"local {given}\ndo\n{code}end"
    return (
        f"local {given}\n{given} = setmetatable({{}}, {{__index = function(_, key)\n{code}return {given}[key]\nend}})"
    )


def _in_lua(value: Constant) -> str:
    if isinstance(value, tuple):
        return "{" + ", ".join(map(_in_lua, value)) + "}"
    return f"'{value}'" if isinstance(value, str) else repr(value)
