"""The machine that measured, and the versions of everything that took part."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import msgspec

from shoal.version import __version__

HERE = Path(__file__).resolve().parent
OURS = ("pyreqwest", "selectolax", "ada-url", "uvloop", "redis", "hiredis", "asyncpg")
PROGRAMS = {
    "nginx": ["nginx", "-v"],
    "redis-server": ["redis-server", "--version"],
    "PostgreSQL": ["postgres", "--version"],
    "node": ["node", "--version"],
}
GIB = 1024**3


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where the figures were measured."""

    processor: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str

    def __str__(self) -> str:
        memory = f"{self.memory_bytes / GIB:.0f} GiB"
        return f"{self.processor}, {self.cores} cores, {memory}, {self.kernel}, Python {self.python}"


def this_machine() -> Machine:
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def load_notes() -> list[str]:
    """What a reader must know of a machine that others use now."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < cores:
        return []
    return [f"other programs used the machine as well: {load:.1f} of them wanted its {cores} cores when this began"]


def versions() -> dict[str, str]:
    """Name and version: shoal and its libraries, the servers, and the peers as they are pinned."""
    found = {"shoal": __version__}
    found |= {name: version for name in OURS if (version := _installed(name))}
    found |= {name: version for name, command in PROGRAMS.items() if (version := _program(command))}
    return found | _pinned(HERE)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.+)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else []
    return names[0] if names else platform.machine()


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _program(command: list[str]) -> str | None:
    newest = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))[-1:]
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", *map(str, newest)])
    program = shutil.which(command[0], path=places)
    if program is None:
        return None
    said = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)
    number = re.search(r"\d+(\.\d+)+", said.stdout + said.stderr)
    return number.group() if number else None


def _pinned(folder: Path) -> dict[str, str]:
    """The versions that the requirements files and Node's package.json name."""
    found = {}
    for path in sorted(folder.glob("*-requirements.txt")):
        for name, version in re.findall(r"^([\w.-]+)(?:\[.*\])?==(\S+)", path.read_text(), re.MULTILINE):
            found[f"{name}, for {path.stem.removesuffix('-requirements')}"] = version
    for path in sorted(folder.glob("*/package.json")):
        wanted = json.loads(path.read_text()).get("dependencies", {})
        found |= {f"{name}, for {path.parent.name}": version for name, version in wanted.items()}
    return found
