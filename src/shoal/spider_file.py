"""Loads a spider from a file: `books.py`, `books.py:Books`, or from a module: `package.module:Books`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from shoal.errors import UsageError
from shoal.spider import Spider


def load_spider(reference: str) -> type[Spider]:
    """The spider class that a reference names; without a class name, the only one of its file."""
    spiders = load_spiders(reference)
    if len(spiders) > 1:
        raise UsageError(f"{reference} has several spiders: name one, as in {reference}:{spiders[0].__name__}")
    return spiders[0]


def load_spiders(reference: str) -> list[type[Spider]]:
    """The spider class that a reference names; without a class name, all classes of its file."""
    source, _, name = reference.rpartition(":") if ":" in reference else (reference, "", "")
    module = _load_file(Path(source)) if source.endswith(".py") else _load_module(source)
    spiders = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Spider) and value.__module__ == module.__name__
    ]
    if name:
        return [_named(spiders, name, source)]
    if not spiders:
        raise UsageError(f"{source} has no spider: write a class that derives from shoal.Spider")
    return spiders


def _named(spiders: list[type[Spider]], name: str, source: str) -> type[Spider]:
    for spider in spiders:
        if spider.__name__ == name:
            return spider
    known = ", ".join(spider.__name__ for spider in spiders) or "none"
    raise UsageError(f"{source} has no spider {name!r}; it has: {known}")


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"no spider file {path}: check the path")
    # Not under the name of a standard module: a spider's file may well be called queue.py.
    name = f"{path.stem}_spider" if path.stem in sys.stdlib_module_names else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    # Registered, and its folder on the path, so that the spider's imports and dataclasses work as usual.
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UsageError(f"{path} cannot be loaded: {_where(error, path)}") from error
    return module


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(f"no spider file or module {name!r}: a file name ends in .py") from error
        raise UsageError(f"the module {name!r} cannot be loaded: {type(error).__name__}: {error}") from error


def _where(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"line {error.lineno}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = f"line {frames[-1].lineno}: " if frames else ""
    return f"{line}{type(error).__name__}: {error}"
