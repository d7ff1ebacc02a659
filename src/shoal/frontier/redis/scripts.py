"""Assembles the Lua scripts of the Redis frontier: one file per verb, preceded by the parts that it needs.

A verb or part lists its direct needs in a line `-- needs: crawl lanes`; a part lists the names that it defines for
others in a line `-- gives: find_lane need_lane`. Parts are sorted by their needs, each once, in a block of its own: its
other names stay local, as a script has room for two hundred. A block begins with the Python constants that it uses.

Creating the functions of a part costs time in every call of a script. A part that gives one table, and that few calls
need, is marked `-- lazy`: its block runs when one of its names is first used.

The keys and their contents: `docs/explanation/redis-layout.md`.
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

# The version of a crawl's keys and their contents: field `layout` of its record. Increase it when scripts of one
# version cannot work on crawls of the other: a crawl of another layout is refused (`other_layout`).
LAYOUT_VERSION: Final = 1
UNKNOWN_LAYOUT: Final = -1  # the field is missing or no number

Constant = int | float | str | tuple[str, ...]

SEQUENCES: Final = 2**31  # per step of priority: order = sequence - priority * SEQUENCES stays exact in a double
LANE_RECORD: Final = ">" + 17 * "d"  # the numbers of a lane, explained in lua/parts/lanes.lua
VERDICTS: Final = ("ok", "blocked", "failed", "used", "unused")  # a report has the index of its verdict here

# By the name in scripts. A script gets only the constants that it uses.
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
    """A script's text, and the hash under which the server stores it."""

    text: str
    sha: str


class Part(msgspec.Struct, frozen=True):
    """The block of a part, and the parts that it needs."""

    block: str
    needs: list[str]


class LuaFolder:
    """Assembles scripts from a folder with `verbs/` and `parts/`. Each part is read once."""

    def __init__(self, folder: Traversable | None = None) -> None:
        self._folder = folder or resources.files("shoal.frontier.redis").joinpath("lua")
        self._parts: dict[str, Part] = {}

    def scripts(self) -> dict[str, Script]:
        """Every verb's script, by its name."""
        return {verb: self.script(verb) for verb in self.names("verbs")}

    def script(self, verb: str) -> Script:
        """The script of one verb. Raises ValueError if parts need each other in a circle, or do not exist."""
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
        """A verb's text, preceded by the blocks of all parts that it needs, each after its own needs."""
        blocks: dict[str, str] = {}
        for need in needs_of(text):
            self._add_part(need, blocks, path=(name,))
        return "\n".join([*blocks.values(), prelude(text, CONSTANTS) + text])

    def _add_part(self, name: str, blocks: dict[str, str], *, path: tuple[str, ...]) -> None:
        """Add a part after its own needs. `path`: from the verb to the part."""
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
    """The scripts of this package by verb, assembled once per process."""
    return LuaFolder().scripts()


def needs_of(text: str) -> list[str]:
    """The parts that a verb or a part needs."""
    return " ".join(_NEEDS.findall(text)).split()


def gives_of(text: str) -> list[str]:
    """The names that a part defines for others."""
    return " ".join(_GIVES.findall(text)).split()


def prelude(code: str, constants: Mapping[str, Constant]) -> str:
    """The line that defines the constants that the code uses; "": it uses none."""
    used = set(_NAME.findall(_COMMENT.sub("", code)))
    names = [name for name in constants if name in used]
    values = [_in_lua(constants[name]) for name in names]
    return f"local {', '.join(names)} = {', '.join(values)}\n" if names else ""


def _block(text: str) -> str:
    """The block of a part."""
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
