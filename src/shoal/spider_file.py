"""Loads a spider from a file: `books.py`, `books.py:Books`, or from a module: `package.module:Books`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType

from shoal.errors import UsageError
from shoal.near_names import nearest
from shoal.spider import Spider, spider_name


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
    _refuse_shared_names(spiders, source)
    if name:
        return [_named(spiders, name, source)]
    if not spiders:
        raise UsageError(f"{source} has no spider: write a class that derives from shoal.Spider")
    return spiders


def _refuse_shared_names(spiders: list[type[Spider]], source: str) -> None:
    """Crawls and items are kept by the spider's name: two that can run must not share one. Classes without a start are
    there for others to derive from."""
    names: dict[str, str] = {}
    for spider in spiders:
        if spider.start is Spider.start:
            continue
        name = spider_name(spider)
        if name in names:
            raise UsageError(
                f"{source}: {names[name]} and {spider.__name__} are both named {name!r}, their crawls and items would"
                f' mix: give each a name of its own (name = "…" in the class)'
            )
        names[name] = spider.__name__


def made(spider: type[Spider]) -> Spider:
    """A spider of this class. Refuses a class whose `__init__` needs arguments, or raises."""
    parameters = inspect.signature(spider).parameters.values()
    needed = [
        one.name
        for one in parameters
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if needed:
        what = f"{spider.__name__}.__init__ needs {', '.join(needed)}"
        raise UsageError(f"{what}, and spiders are made without arguments: give them defaults")
    try:
        return spider()
    except (Exception, SystemExit) as error:
        file = Path(inspect.getfile(spider))
        raise UsageError(f"{file.name}: {spider.__name__} cannot be made: {_where(error, file)}") from error


def _named(spiders: list[type[Spider]], name: str, source: str) -> type[Spider]:
    for spider in spiders:
        if spider.__name__ == name:
            return spider
    known = ", ".join(spider.__name__ for spider in spiders) or "none"
    raise UsageError(f"{source} has no spider {name!r}; it has: {known}")


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        near = nearest(path.name, [file.name for file in path.parent.glob("*.py")])
        raise UsageError(
            f"no spider file {path}: {f'did you mean {path.with_name(near)}?' if near else 'check the path'}"
        )
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
        raise UsageError(f"the module {name!r} cannot be loaded: {_where(error, None)}") from error


def _where(error: BaseException, path: Path | None) -> str:
    """The error in one line, after the deepest line of people's own code: of the spider's file or one it imports."""
    text, main = f"{type(error).__name__}: {error}", None if path is None else path.absolute()
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename is not None:
        frames.append((Path(error.filename), error.lineno))
        text = error.msg
    own = [(file.absolute(), line) for file, line in frames if _is_own(file)]
    if not own:
        return text
    file, line = own[-1]
    if file == main:
        return f"line {line}: {text}"
    begun = next((f" (from line {line})" for file, line in reversed(own) if file == main), "")
    folder = Path.cwd() if main is None else main.parent
    shown = file.relative_to(folder) if file.is_relative_to(folder) else file
    return f"{shown}:{line}{begun}: {text}"


def _is_own(file: Path) -> bool:
    """Whether a file is people's own code: no part of Python, of shoal or of an installed package."""
    folders = (sysconfig.get_path("stdlib"), str(Path(__file__).parent))
    return not str(file).startswith(("<", *folders)) and "site-packages" not in file.parts
