"""A Dockerfile as its stages and instructions, read as far as ours goes: a form that is not known here is an error."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import NamedTuple

KNOWN = {
    "ARG",
    "FROM",
    "ENV",
    "COPY",
    "RUN",
    "WORKDIR",
    "USER",
    "EXPOSE",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "ENTRYPOINT",
    "CMD",
}
_VARIABLE = re.compile(r"\$\{([A-Z_]+)\}")


class Instruction(NamedTuple):
    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """Those of the JSON form, as the container runs them."""
        found: list[str] = json.loads(self.text[self.text.index("[") :])
        return found


@dataclass
class Stage:
    """`parent` is an image, or a stage before this one."""

    name: str
    parent: str
    instructions: list[Instruction] = field(default_factory=list)


def stages_of(text: str) -> dict[str, Stage]:
    """The stages by name, in their order."""
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    for line in re.sub(r"\\\n", " ", plain).splitlines():
        if not line.strip():
            continue
        name, _, rest = line.partition(" ")
        assert name in KNOWN, f"the instruction {name} is not known"
        rest = _VARIABLE.sub(lambda found: arguments[found[1]], rest.strip())
        if name == "ARG":
            key, _, value = rest.partition("=")
            arguments[key] = value
        elif name == "FROM":
            parent, _, own = rest.partition(" AS ")
            stages[own] = stage = Stage(own, parent)
        else:
            stage.instructions.append(Instruction(name, rest))
    return stages


def lineage(stages: dict[str, Stage], name: str) -> list[Instruction]:
    """The instructions of a stage after those of the stages that it begins from."""
    stage = stages[name]
    before = lineage(stages, stage.parent) if stage.parent in stages else []
    return [*before, *stage.instructions]


def last(instructions: list[Instruction], name: str) -> Instruction:
    """The one that holds, of several."""
    return [one for one in instructions if one.name == name][-1]
