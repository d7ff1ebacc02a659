"""The file that a spider comes from. A crawl belongs to it: another file may have a class of the same name."""

from __future__ import annotations

import importlib.util
import os
import socket
from pathlib import Path

import msgspec

from shoal.processes.machine import this_machine
from shoal.processes.result_places import file_of


class SpiderSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a spider's file lies: its absolute path and the machine; `beside`: its path from the folder of the
    frontier's file, which may be moved or copied together with it. All empty for a module, which its name tells."""

    path: str = ""
    machine: str = ""
    host: str = ""
    beside: str = ""


def source_of(reference: str, *, frontier: str = "") -> SpiderSource:
    """The source of the spider that a reference leads to."""
    file = _file(reference)
    if not file.endswith(".py"):
        return SpiderSource()
    path = Path(file).resolve()
    frontiers = file_of(frontier) if frontier else None
    beside = "" if frontiers is None else os.path.relpath(path, Path(frontiers).resolve().parent)
    return SpiderSource(path=str(path), machine=this_machine(), host=socket.gethostname(), beside=beside)


def is_same_spider(known: str, known_source: SpiderSource, reference: str, *, frontier: str = "") -> bool:
    """Whether a reference leads to the file that a crawl belongs to, `known` by its own reference and source.

    On one machine the paths tell; a file that is not there any more was moved. On another machine the folders may
    differ: there the file's name tells."""
    if not known:
        return True
    ours = source_of(reference, frontier=frontier)
    if not known_source.path or not ours.path:
        # A module.
        return _name(known) == _name(reference) or _is_file_of_module(known, known_source, reference)
    if ours.path == known_source.path:
        return True
    if Path(ours.path).name != Path(known_source.path).name:
        return False
    if ours.beside and ours.beside == known_source.beside:
        return True
    return not _is_here(known_source) or not Path(known_source.path).exists()


def _is_file_of_module(known: str, known_source: SpiderSource, reference: str) -> bool:
    """Whether one reference names a module and the other one its file."""
    module, path = _module(reference), known_source.path
    if not module:
        module, path = _module(known), source_of(reference).path
    try:
        spec = importlib.util.find_spec(module) if module and path else None
    except (ImportError, ValueError):
        spec = None
    return spec is not None and spec.origin is not None and str(Path(spec.origin).resolve()) == path


def shown_source(known: str, known_source: SpiderSource) -> str:
    """The file that a crawl belongs to, for people."""
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
    """The name of the module that a reference names; empty for a file."""
    file = _file(reference)
    return "" if file.endswith(".py") else file


def _name(reference: str) -> str:
    """A module by its name, a file by its name without the folder."""
    file = _file(reference)
    return Path(file).name if file.endswith(".py") else file
