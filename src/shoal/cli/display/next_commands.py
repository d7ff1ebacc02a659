"""Builds the commands in messages: complete lines to paste into a shell in the same folder."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click
import msgspec

from shoal.backends import is_pipe
from shoal.cli.main import shoal
from shoal.cli.options import LIST_FLAGS
from shoal.crawl.opening import Places
from shoal.crawl.places import DEFAULT_FILE, default_store
from shoal.crawl.record import record_of
from shoal.model import Crawl
from shoal.settings.table import ARCHIVE_VARIABLE, EXITS_VARIABLE, FRONTIER_VARIABLE, STORE_VARIABLE, Settings
from shoal.text.secrets import masked

# shoal's own spiders: their start is not in their file, so no command built here could run them again.
OWN_SPIDERS = "shoal."

quote = shlex.quote


def command(line: str, places: Places, *, by: str = "", environ: Mapping[str, str] = os.environ) -> str:
    """A command with the options for these places that it needs, except those in the environment.

    line: the words after `shoal`. by: how to call shoal. A password is masked, and the text says so."""
    return commands([line], places, by=by, environ=environ)


def commands(lines: Iterable[str], places: Places, *, by: str = "", environ: Mapping[str, str] = os.environ) -> str:
    """Several commands joined by &&."""
    return pasted([_with_places(line, places, environ) for line in lines], by=by)


def _with_places(line: str, places: Places, environ: Mapping[str, str]) -> tuple[str, list[tuple[str, str]]]:
    """The line, and its options for places."""
    flags = _flags(line)
    named = _places(places, environ, knows_crawl="--frontier" in flags)
    line += " --other-store" if places.other_store and "--other-store" in flags else ""
    return line, [(flag, url) for flag, url in named if flag in flags]


def pasted(lines: Iterable[tuple[str, Sequence[tuple[str, str]]]], *, by: str = "") -> str:
    """Lines with their options for places, joined by &&; a prefix names masked passwords."""
    whole, hidden = [], set()
    for line, options in lines:
        whole.append(" ".join([by or program(), line, *(f"{flag} {quote(masked(url))}" for flag, url in options)]))
        hidden |= {url for _, url in options if masked(url) != url}
    what = "password" if len(hidden) == 1 else "passwords"
    return (f"with the {what} in place of ***: " if hidden else "") + " && ".join(whole)


def run_again(crawl: Crawl, places: Places, **changes: Any) -> str:
    """The command that resumes a crawl with these settings changed."""
    record = record_of(crawl) if crawl.settings else None
    if record is None or not record.spider or record.spider.startswith(OWN_SPIDERS):
        asked = " ".join(f"--set {name}={quote(_written(value))}" for name, value in changes.items())
        return f"the command that began it, with {asked}"
    words = ["run", quote(record.spider), *_arguments(record.arguments), *_settings(record.settings, changes)]
    return command(" ".join(words), places)


def run_line(spider: str, flags: Mapping[str, Any], **options: Any) -> str:
    """The command that runs a spider with the current options, without `shoal`. It resumes a crawl: --fresh and --again
    are left out."""
    words = ["run", quote(spider)]
    words += _arguments(options["arguments"])
    words += [] if options["workers"] == 1 else [f"--workers {options['workers']}"]
    words += [f"-o {quote(target)}" for target in options["output"]]
    words += [f"--kinds {','.join(options['kinds'])}"] if options.get("kinds") else []
    words += [f"--exits {quote(os.environ[EXITS_VARIABLE])}"] if os.environ.get(EXITS_VARIABLE) else []
    words += [f"--skip-stored {quote(options['skip_stored'])}"] if options.get("skip_stored") else []
    words += [f"--inbox {quote(options['inbox'])}"] if options.get("inbox") else []
    switches = (("--strict", "strict"), ("--json", "as_json"), ("--stay", "stay"))
    words += [flag for flag, name in switches if options.get(name)]
    return " ".join([*words, *_options(flags)])


def run_words(
    spider: str, flags: Mapping[str, Any], *, arguments: Mapping[str, str], places: Iterable[tuple[str, str]]
) -> list[str]:
    """The words after `shoal` that run a spider with these settings, arguments and places."""
    lines = [*_arguments(arguments), *_options(flags)]
    return ["run", spider, *(word for line in lines for word in shlex.split(line)), *chain.from_iterable(places)]


def _arguments(arguments: Mapping[str, str]) -> list[str]:
    return [f"-a {quote(f'{name}={text}')}" for name, text in arguments.items()]


def begin_again(line: str, places: Places) -> str:
    """What to do after the frontier lost a crawl. line: the command that ran it, without `shoal`."""
    if not line:
        return "begin again with the same command"
    if "--skip-stored" in line:
        return f"begin again: {command(line, places)}"
    return (
        f"begin again: {command(f'{line} --skip-stored REGEX', places)} (REGEX: URLs of pages without further links;"
        " those whose items are in the store are skipped; leave the option out to fetch all)"
    )


def program() -> str:
    """How to call shoal here: by its name if the shell finds it, else as it was called now."""
    if shutil.which("shoal"):
        return "shoal"
    called = sys.argv[0]
    return quote(called) if Path(called).name == "shoal" else f"{quote(sys.executable)} -m shoal"


def _places(places: Places, environ: Mapping[str, str], *, knows_crawl: bool) -> Iterator[tuple[str, str]]:
    """The flags for these places, except those that the command would use anyway.

    knows_crawl: the command uses the crawl's own store, unless that needs a password."""
    # A worker behind a pipe names commands to run where the frontier is.
    if not is_pipe(places.frontier) and places.frontier != (environ.get(FRONTIER_VARIABLE) or DEFAULT_FILE):
        yield "--frontier", places.frontier
    store, named = places.store or default_store(places.frontier), environ.get(STORE_VARIABLE)
    is_assumed = knows_crawl and not named and not places.other_store and masked(store) == store
    if not is_assumed and store != (named or default_store(places.frontier)):
        yield "--store", store
    if places.archive is not None and places.archive != environ.get(ARCHIVE_VARIABLE):
        yield "--archive", places.archive


def _flags(line: str) -> set[str]:
    """The flags of a command."""
    found: click.Command = shoal
    for word in shlex.split(line):
        inner = found.get_command(click.Context(found), word) if isinstance(found, click.Group) else None
        if inner is None:
            break
        found = inner
    return {flag for option in found.params for flag in option.opts}


def _settings(settings: Settings, changes: Mapping[str, Any]) -> Iterator[str]:
    """Flags for the settings that differ from the default, and for `changes`."""
    default = msgspec.structs.asdict(Settings())
    differing = {name: value for name, value in msgspec.structs.asdict(settings).items() if value != default[name]}
    return _options({**differing, **changes})


def _options(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        if name in LIST_FLAGS and not isinstance(value, str):
            yield from (f"{LIST_FLAGS[name]} {quote(entry)}" for entry in value)
        else:
            yield f"--set {name}={quote(_written(value))}"


def _written(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
