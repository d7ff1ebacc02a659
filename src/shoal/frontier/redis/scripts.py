"""The scripts of the Redis frontier: one file per verb, with the parts it names put before it."""

from __future__ import annotations

import hashlib
import re
from importlib import resources

import msgspec

VERBS = (
    "beat", "busy", "dead", "delete", "delivered", "evict", "extend", "feeding", "find", "finish", "forget", "grant",
    "lease", "lend", "look_up", "open", "pace", "pools", "posted", "progress", "put", "reclaim", "repair", "resend",
    "reserve", "rules", "samples", "settle", "state", "survey", "ttl", "uses", "walk", "workers",
)  # fmt: skip
_INCLUDES = re.compile(r"^-- include: (.*)$", re.MULTILINE)


class Script(msgspec.Struct, frozen=True):
    """A script's text and the name under which the server keeps it."""

    text: str
    sha: str


def load_scripts() -> dict[str, Script]:
    """Every verb's script, by its name."""
    return {verb: _script(verb) for verb in VERBS}


def _script(verb: str) -> Script:
    text = _read("verbs", verb)
    includes = _INCLUDES.search(text)
    parts = [_read("parts", part) for part in includes[1].split()] if includes else []
    whole = "\n".join([*parts, text])
    return Script(whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest())


def _read(folder: str, name: str) -> str:
    return resources.files("shoal.frontier.redis").joinpath("lua", folder, f"{name}.lua").read_text(encoding="utf-8")
