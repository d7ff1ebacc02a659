"""The scripts of the Redis frontier: one Lua file per verb, with the parts that it needs put before it.

A verb or a part names its direct needs in a line `-- needs: crawl lanes`, a part the names that it defines for others
in a line `-- gives: find_lane need_lane`. The parts come in the order in which they need each other, each once, in a
block of its own: its other names stay inside, as a script has room for two hundred. A block begins with the constants
that it uses, as Python has them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable

import msgspec

from shoal.frontier.redis.layout import CONSTANTS, Constant

_NEEDS = re.compile(r"^-- needs: (.*)$", re.MULTILINE)
_GIVES = re.compile(r"^-- gives: (.*)$", re.MULTILINE)
_COMMENT = re.compile(r"--.*$", re.MULTILINE)
_NAME = re.compile(r"\b[A-Z][A-Z0-9_]*\b")


class Script(msgspec.Struct, frozen=True):
    """A script's text and the name under which the server keeps it."""

    text: str
    sha: str


def load_scripts() -> dict[str, Script]:
    """Every verb's script, by its name."""
    folder = lua_folder()
    return {verb: script_of(verb, folder) for verb in names_in(folder, "verbs")}


def load_script(verb: str) -> Script:
    """The script of one verb."""
    return script_of(verb, lua_folder())


def lua_folder() -> Traversable:
    return resources.files("shoal.frontier.redis").joinpath("lua")


def names_in(folder: Traversable, kind: str) -> list[str]:
    """The names of the verbs or of the parts."""
    files = folder.joinpath(kind).iterdir()
    return sorted(file.name.removesuffix(".lua") for file in files if file.name.endswith(".lua"))


def script_of(verb: str, folder: Traversable) -> Script:
    """The script of one verb. Raises ValueError when its parts need each other in a circle, or do not exist."""
    whole = assembled(_read(folder, "verbs", verb), folder, name=verb)
    return Script(whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest())


def assembled(text: str, folder: Traversable, *, name: str) -> str:
    """A verb's text behind a block for every part that it needs, the needs of each part before it."""
    parts: dict[str, str] = {}
    for need in needs_of(text):
        _add_part(need, folder, parts, path=(name,))
    return "\n".join([*map(_block, parts.values()), prelude(text, CONSTANTS) + text])


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


def _add_part(part: str, folder: Traversable, parts: dict[str, str], *, path: tuple[str, ...]) -> None:
    """Add a part behind its own needs. The path leads from the verb to it."""
    if part in path[1:]:
        raise ValueError(f"Lua parts need each other in a circle: {' → '.join([*path[path.index(part, 1) :], part])}")
    if part in parts:
        return
    try:
        text = _read(folder, "parts", part)
    except FileNotFoundError:
        raise ValueError(f"there is no Lua part {part!r}, which {path[-1]} needs") from None
    for need in needs_of(text):
        _add_part(need, folder, parts, path=(*path, part))
    parts[part] = text


def _block(part: str) -> str:
    return f"local {', '.join(gives_of(part))}\ndo\n{prelude(part, CONSTANTS)}{part}end"


def _in_lua(value: Constant) -> str:
    if isinstance(value, tuple):
        return "{" + ", ".join(map(_in_lua, value)) + "}"
    return f"'{value}'" if isinstance(value, str) else repr(value)


def _read(folder: Traversable, kind: str, name: str) -> str:
    return folder.joinpath(kind, f"{name}.lua").read_text(encoding="utf-8")
