"""Loads a spider class from a file (`books.py`, `books.py:Books`) or a module (`package.module:Books`)."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final

import msgspec

from shoal.errors import UsageError
from shoal.settings.table import FIELDS
from shoal.spider.spider import Spider, spider_name
from shoal.text.near_names import nearest

NO_ARGUMENTS: Final[Mapping[str, str]] = MappingProxyType({})


def load_spider(reference: str) -> type[Spider]:
    """The spider class of a reference; without a class name, the only one of its file."""
    spiders = load_spiders(reference)
    if len(spiders) > 1:
        raise UsageError(f"{reference} has several spiders: name one, as in {reference}:{spiders[0].__name__}")
    return spiders[0]


def load_spiders(reference: str) -> list[type[Spider]]:
    """The spider class of a reference; without a class name, all spider classes of its file."""
    source, _, name = reference.rpartition(":") if ":" in reference else (reference, "", "")
    module = load_module(source)
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


def load_module(source: str) -> ModuleType:
    """The module of a file (`.py`), else the module of that name."""
    return _load_file(Path(source)) if source.endswith(".py") else _load_module(source)


def _refuse_shared_names(spiders: list[type[Spider]], source: str) -> None:
    """Raise UsageError if two spiders share a name: crawls and items are kept by it. Classes without a `start` are base
    classes."""
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


def made(spider: type[Spider], arguments: Mapping[str, str] = NO_ARGUMENTS) -> Spider:
    """An instance of the class. Arguments go to its `__init__` if it takes them, else they are set as attributes.

    Raises UsageError for unknown or missing arguments, and if `__init__` raises."""
    parameters = inspect.signature(spider).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    passed = {name: text for name, text in arguments.items() if takes_all or _is_passed(name, parameters)}
    _refuse_missing(spider, parameters, passed)
    assigned = {name: _value(spider, name, text) for name, text in arguments.items() if name not in passed}
    try:
        instance = spider(**passed)
    except (Exception, SystemExit) as error:
        file = Path(inspect.getfile(spider))
        raise UsageError(f"{file.name}: {spider.__name__} cannot be made: {_where(error, file)}") from error
    for name, value in assigned.items():
        setattr(instance, name, value)
    if arguments:
        instance.arguments = dict(arguments)
    return instance


def _is_passed(name: str, parameters: Mapping[str, inspect.Parameter]) -> bool:
    one = parameters.get(name)
    return one is not None and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)


def _refuse_missing(
    spider: type[Spider], parameters: Mapping[str, inspect.Parameter], passed: Mapping[str, str]
) -> None:
    needed = [
        one.name
        for one in parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    missing = [name for name in needed if name not in passed]
    if missing:
        given = " ".join(f"-a {name}=…" for name in missing)
        raise UsageError(f"{spider.__name__}.__init__ needs {', '.join(missing)}: give {given}, or give them defaults")


def _value(spider: type[Spider], name: str, text: str) -> Any:
    """An argument converted to the type of the attribute."""
    if name in FIELDS:
        raise UsageError(f"{name} is a setting, no argument of {spider.__name__}: write --set {name}={text}")
    own = [known for known in dir(spider) if _is_attribute(spider, known)]
    if name not in own:
        near = nearest(name, own)
        what = f"did you mean {near}?" if near else f"it has {', '.join(own) or 'none'}"
        raise UsageError(f"{spider.__name__} takes no argument {name!r}: {what} (an attribute, or one of __init__)")
    default = getattr(spider, name)
    kind = type(default) if isinstance(default, bool | int | float) else str
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError:
        raise UsageError(f"-a {name}={text}: {spider.__name__}.{name} is {_KINDS[kind]}") from None


def _is_attribute(spider: type[Spider], name: str) -> bool:
    """Whether `-a` may set this attribute: defined by the spider's class, public, no method."""
    return not name.startswith("_") and not hasattr(Spider, name) and not callable(getattr(spider, name, None))


_KINDS: Final = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


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
    # Not under the name of a standard module: a spider's file may be called queue.py.
    name = f"{path.stem}_spider" if path.stem in sys.stdlib_module_names else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    # Registered, and its folder on the path, for dataclasses and imports of the spider.
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
    """The error in one line, after the deepest line of the user's code: the spider's file or one it imports."""
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
    """Whether a file is the user's: no part of Python, shoal or an installed package."""
    folders = (sysconfig.get_path("stdlib"), str(Path(__file__).parent))
    return not str(file).startswith(("<", *folders)) and "site-packages" not in file.parts
