"""A spider's file, to which its crawls belong, and the digest of its code, to find machines with other code."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import socket
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from shoal.crawl.places import file_of
from shoal.model import Heartbeat
from shoal.text.errors import several
from shoal.worker.machine import this_machine


class SpiderSource(msgspec.Struct, frozen=True, kw_only=True):
    """The absolute path of a spider's file, and its machine; `beside`: the path relative to the frontier's file, since
    both may be moved together. All empty for a module: its name is enough."""

    path: str = ""
    machine: str = ""
    host: str = ""
    beside: str = ""


def source_of(reference: str, *, frontier: str = "") -> SpiderSource:
    """The source of the spider that a reference names."""
    file = _file(reference)
    if not file.endswith(".py"):
        return SpiderSource()
    path = Path(file).resolve()
    frontiers = file_of(frontier) if frontier else None
    beside = "" if frontiers is None else os.path.relpath(path, Path(frontiers).resolve().parent)
    return SpiderSource(path=str(path), machine=this_machine(), host=socket.gethostname(), beside=beside)


def is_same_spider(known: str, known_source: SpiderSource, reference: str, *, frontier: str = "") -> bool:
    """Whether a reference names the file that a crawl belongs to; `known` and `known_source` are the crawl's.

    On one machine the paths decide, unless the crawl's file is gone: then it was moved. Between machines the file's
    name decides."""
    if not known:
        return True
    ours = source_of(reference, frontier=frontier)
    if not known_source.path or not ours.path:
        # A module.
        return _module_path(known) == _module_path(reference) or _is_file_of_module(known, known_source, reference)
    if ours.path == known_source.path:
        return True
    if Path(ours.path).name != Path(known_source.path).name:
        return False
    if ours.beside and ours.beside == known_source.beside:
        return True
    return not _is_here(known_source) or not Path(known_source.path).exists()


def _is_file_of_module(known: str, known_source: SpiderSource, reference: str) -> bool:
    """Whether one reference names a module and the other its file."""
    module, path = _module(reference), known_source.path
    if not module:
        module, path = _module(known), source_of(reference).path
    try:
        spec = importlib.util.find_spec(module) if module and path else None
    except (ImportError, ValueError):
        spec = None
    return spec is not None and spec.origin is not None and str(Path(spec.origin).resolve()) == path


def shown_source(known: str, known_source: SpiderSource) -> str:
    """The file that a crawl belongs to, for messages."""
    path = known_source.path
    if path and _is_here(known_source) and not Path(path).exists():
        return f"{path}, which is not there any more (a file {Path(path).name} with its spider resumes it)"
    return path or _file(known)


def _is_here(source: SpiderSource) -> bool:
    return source.machine == this_machine() or source.host == socket.gethostname()


def _file(reference: str) -> str:
    """The reference without the name of the class."""
    return reference.rpartition(":")[0] if ":" in reference else reference


def _module(reference: str) -> str:
    """The module that a reference names; empty for a file."""
    file = _file(reference)
    return "" if file.endswith(".py") else file


def _module_path(reference: str) -> str:
    """A module by its name, a file by its name without the folder."""
    file = _file(reference)
    return Path(file).name if file.endswith(".py") else file


# A crawl's record is read every second: for a spider with more files only the digest is stored.
MOST_FILES = 100
NAMED = 3


class SpiderCode(msgspec.Struct, frozen=True, kw_only=True):
    """The version of a spider's code. `digest`: of all its files; empty: unknown. `files`: a digest of each, by its
    path in the spider's folder, to name those that differ."""

    digest: str = ""
    files: dict[str, str] = {}


NO_CODE = SpiderCode()


def code_of(reference: str) -> SpiderCode:
    """The code of the spider that a reference names, just after loading it: later imports are not found."""
    source = reference.rpartition(":")[0] if ":" in reference else reference
    marks = {name: _mark(path) for name, path in sorted(_code_files(source)) if path.suffix == ".py" and path.is_file()}
    if not marks:
        return NO_CODE
    digest = _short(repr(list(marks.items())).encode())
    return SpiderCode(digest=digest, files=marks if len(marks) <= MOST_FILES else {})


def differences(begun: SpiderCode, ours: SpiderCode) -> str:
    """The files in which `ours` differs from a crawl's code, for messages; empty: none, or one of both is unknown."""
    if not begun.digest or not ours.digest or begun.digest == ours.digest:
        return ""
    if not begun.files or not ours.files:
        return "its files"
    return _named(begun.files, ours.files)


def others(beats: Iterable[Heartbeat], code: SpiderCode) -> list[Heartbeat]:
    """The workers that run other code than `code`; not those whose code is unknown."""
    return [beat for beat in beats if beat.code and code.digest and beat.code != code.digest]


def own_files(spider_file: Path) -> list[Path]:
    """The spider's file and the loaded modules from its folder."""
    folder, main = spider_file.resolve().parent, spider_file.resolve()
    found = {main, *(path for path in _loaded() if path.is_relative_to(folder) and not _is_installed(path, folder))}
    return sorted(found)


def _code_files(source: str) -> Iterator[tuple[str, Path]]:
    """Each file with its path in the spider's folder; for a module, in the folder of its package."""
    if source.endswith(".py"):
        main = Path(source)
    else:
        package = sys.modules[source.partition(".")[0]]
        if package.__name__ == "shoal":
            return  # The version of shoal is enough; a worker's heartbeat has it.
        folders = [Path(folder).resolve() for folder in getattr(package, "__path__", ())]
        for folder in folders:
            yield from ((_name(path, folder.parent), path) for path in set(_loaded()) if path.is_relative_to(folder))
        if folders or package.__file__ is None:
            return
        main = Path(package.__file__)
    yield from ((_name(path, main.resolve().parent), path) for path in own_files(main))


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _loaded() -> list[Path]:
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return [Path(file).resolve() for file in files if file]


def _is_installed(path: Path, folder: Path) -> bool:
    """Whether a file belongs to Python or an installed package, in an environment inside the spider's folder."""
    places = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")}
    own = Path(__file__).resolve().parent.parent
    parts = path.relative_to(folder).parts
    return (
        any(path.is_relative_to(place) for place in (*places, own))
        or "site-packages" in parts
        or any(part.startswith(".") for part in parts)
    )


def _mark(path: Path) -> str:
    # Another machine's git may write other line endings.
    return _short(path.read_bytes().replace(b"\r\n", b"\n"))


def _short(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _named(begun: dict[str, str], ours: dict[str, str]) -> str:
    names = [
        name if name in begun and name in ours else f"{name} ({'missing' if name in begun else 'more'})"
        for name in sorted({*begun, *ours})
        if begun.get(name) != ours.get(name)
    ]
    rest = [several(len(names) - NAMED, "other file")] if len(names) > NAMED else []
    *most, last = [*names[:NAMED], *rest]
    return f"{', '.join(most)} and {last}" if most else last
