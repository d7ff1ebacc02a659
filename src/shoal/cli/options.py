"""Options and arguments that several commands share."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.backends import is_pipe
from shoal.crawl.places import DEFAULT_FILE, check_place, check_store_exists, file_of, named_by
from shoal.errors import UsageError
from shoal.settings.table import (
    ARCHIVE_VARIABLE,
    EXITS_VARIABLE,
    FIELDS,
    FRONTIER_VARIABLE,
    INBOX_VARIABLE,
    LOG_FORMAT_VARIABLE,
    LOG_LEVEL_VARIABLE,
    PIPE_VARIABLE,
    SINK_VARIABLE,
    STORE_VARIABLE,
)
from shoal.text.secrets import masked

if TYPE_CHECKING:
    from shoal.crawl.opening import Places

Command = Callable[..., Any]

# Settings with a flag of their own: flags, setting, metavar.
_VALUES = (
    (("--rate",), "rate", "RATE"),
    (("--per-host",), "per_host", "N"),
    (("--concurrency",), "concurrency", "N"),
    (("--depth", "--max-depth"), "max_depth", "N"),
    (("--max-pages",), "max_pages", "N"),
    (("--max-items",), "max_items", "N"),
    (("--max-bytes",), "max_bytes", "SIZE"),
    (("--max-seconds",), "max_seconds", "TIME"),
    (("--deadline",), "deadline", "TIME"),
    (("--priority",), "priority", "N"),
    (("--weight",), "weight", "N"),
    (("--pace-scope",), "pace_scope", "host|crawl"),
    (("--worker-max-pages",), "worker_max_pages", "N"),
    (("--worker-max-seconds",), "worker_max_seconds", "TIME"),
    (("--worker-max-memory",), "worker_max_memory", "SIZE"),
    (("--user-agent",), "user_agent", "TEXT"),
    (("--proxies",), "proxies", "FILE"),
)
_LISTS = (("--allow", "allow", "HOST"), ("--deny", "deny", "REGEX"))
LIST_FLAGS = {name: flag for flag, name, _ in _LISTS}
_SWITCHES = (
    ("--ignore-robots", "obey_robots", False, "Ignore robots.txt; the summary says so."),
    ("--allow-private", "allow_private", True, "Allow requests to private and loopback addresses."),
)


def setting_options(command: Command) -> Command:
    """The flags for settings, passed to the command as one argument `flags`: values by setting name."""

    @functools.wraps(command)
    def wrapped(*args: Any, assignments: tuple[str, ...], **options: Any) -> Any:
        flags: dict[str, Any] = dict(_assignment(text) for text in assignments)
        for _, name, _ in (*_VALUES, *_LISTS):
            value = options.pop(name)
            if value:
                flags[name] = list(value) if isinstance(value, tuple) else value
        for _, name, value, _ in _SWITCHES:
            if options.pop(name):
                flags[name] = value
        return command(*args, flags=flags, **options)

    # Decorators apply last to first: reversed, so that --help lists the flags in this order.
    for flag, name, _, text in reversed(_SWITCHES):
        wrapped = click.option(flag, name, is_flag=True, default=False, help=text)(wrapped)
    for flag, name, kind in reversed(_LISTS):
        text = f"{_sentence(name)}; repeatable."
        wrapped = click.option(flag, name, metavar=kind, multiple=True, help=text)(wrapped)
    for flags, name, kind in reversed(_VALUES):
        wrapped = click.option(*flags, name, metavar=kind, help=f"{_sentence(name)}.")(wrapped)
    return click.option(
        "--set",
        "assignments",
        metavar="NAME=VALUE",
        multiple=True,
        help="Any other setting; `shoal settings` lists them. Repeatable.",
    )(wrapped)


def place_options(
    *, store: bool = True, exists: bool = True, archive: bool = False, works: bool = False, pipe: bool = False
) -> Callable[[Command], Command]:
    """--frontier, --store and --archive, passed as one argument `places`.

    exists: refuse a missing file. works: the command runs crawls, add --other-store. pipe: add --pipe."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(
            *args: Any,
            frontier: str,
            store: str | None = None,
            archive: str | None = None,
            other_store: bool = False,
            **options: Any,
        ) -> Any:
            if pipe and options.get("pipe"):
                frontier = _behind(options["pipe"])
            places = places_of(frontier, store, archive=archive, other_store=other_store)
            if exists:
                check_exists(places)
                if store is not None:
                    check_store_exists(store)
            return command(*args, places=places, **options)

        decorated: Command = pipe_option("Reach the frontier through this pipe.")(wrapped) if pipe else wrapped
        for flag in _place_flags(store=store, archive=archive, works=works):
            decorated = flag(decorated)
        return decorated

    return decorate


def _place_flags(*, store: bool, archive: bool, works: bool) -> Iterator[Callable[[Command], Command]]:
    """The flags, last first: --help shows them in reverse."""
    if works:
        yield click.option(
            "--other-store", is_flag=True, help="Use this --store or --archive although the crawl has another one."
        )
    if archive:
        what = "Keep the raw pages here" if works else "Where the raw pages are"
        yield archive_option(f"{what}: a folder, s3://…, gs://… or az://…", default="the crawl's")
    if store:
        default = "the crawl's; of a new one, as --frontier" if works else "the crawl's"
        text = f"Where the items are.  [env var: {STORE_VARIABLE}; default: {default}]"
        yield click.option("--store", metavar="URL", callback=checked_place, envvar=STORE_VARIABLE, help=text)
    yield click.option(
        "--frontier",
        metavar="URL",
        default=DEFAULT_FILE,
        show_default=True,
        envvar=FRONTIER_VARIABLE,
        callback=checked_place,
        show_envvar=True,
        help="Where the tasks are.",
    )


def archive_option(text: str, *, default: str) -> Callable[[Command], Command]:
    """--archive, passed as `archive`."""
    text = f"{text}  [env var: {ARCHIVE_VARIABLE}; default: {default}]"
    return click.option("--archive", metavar="URL", callback=checked_place, envvar=ARCHIVE_VARIABLE, help=text)


def pipe_option(text: str) -> Callable[[Command], Command]:
    """--pipe, passed as `pipe`; its URL is checked, no connection is opened."""

    def checked(context: click.Context, option: click.Parameter, url: str | None) -> str | None:
        if url:
            from shoal.pipes import open_pipe

            check_place(url, where=_given_by(context, option))
            open_pipe(url)
        return url

    help_text = f"{text} amqp://… or sqs://…  [env var: {PIPE_VARIABLE}]"
    return click.option("--pipe", metavar="URL", envvar=PIPE_VARIABLE, callback=checked, help=help_text)


def _behind(pipe: str) -> str:
    """The pipe as the frontier's URL; refused together with --frontier."""
    source = click.get_current_context().get_parameter_source("frontier")
    if source is click.core.ParameterSource.COMMANDLINE:
        raise UsageError(
            "--pipe and --frontier: a worker behind a pipe does not connect to the frontier; leave out one of the two"
        )
    return pipe


def exits_option(command: Command) -> Command:
    """--exits. Worker processes inherit it through the environment."""

    def checked(context: click.Context, option: click.Parameter, file: str | None) -> str | None:
        if file:
            from shoal.exits.offered import load_own_exits

            path = Path(file).absolute()
            load_own_exits(path, given_by=_given_by(context, option))
            os.environ[EXITS_VARIABLE] = str(path)
        return file

    text = f"Offer the exits in this file, which only this machine can use.  [env var: {EXITS_VARIABLE}]"
    option = click.option(
        "--exits", metavar="FILE", envvar=EXITS_VARIABLE, callback=checked, expose_value=False, help=text
    )
    return option(command)


def run_options(command: Command) -> Command:
    """--workers, --sink, --output, --again, --fresh, --yes and --strict, for commands that run a spider to the end."""
    for decorate in (
        click.option("--strict", is_flag=True, help="Return 1 if any page is a dead letter, like max_failures=0."),
        yes_option,
        dashboard_option,
        click.option("--fresh", is_flag=True, help="Discard the unfinished crawl and begin a new one."),
        click.option(
            "--skip-stored",
            metavar="REGEX",
            default="",
            help="Skip pages whose URL matches and whose items are in the store; their links are not followed.",
        ),
        click.option(
            "--skip-known",
            is_flag=True,
            help="In a new crawl: skip URLs that an earlier crawl of the spider has done.",
        ),
        click.option("--again", "anew", is_flag=True, help="Begin a new crawl although the last one is finished."),
        click.option(
            "-o",
            "--output",
            metavar="FILE",
            multiple=True,
            help="Also write the items to a .jsonl, .csv, .json or .parquet file; repeatable.",
        ),
        sink_option("Also send each new or changed item to this URL, in later runs too: see `shoal sink`; repeatable."),
        click.option(
            "--workers",
            metavar="N",
            type=click.IntRange(1, 256),
            default=1,
            show_default=True,
            help="Worker processes.",
        ),
    ):
        command = decorate(command)
    return command


def inbox_option(command: Command) -> Command:
    """--inbox, passed as `inbox`."""
    text = (
        "Folder for files of URLs or JSON lines from other programs, if the frontier is a file."
        f"  [env var: {INBOX_VARIABLE}; default: shoal-inbox/SPIDER beside that file]"
    )
    return click.option("--inbox", metavar="FOLDER", envvar=INBOX_VARIABLE, help=text)(command)


def sink_option(text: str) -> Callable[[Command], Command]:
    """--sink, passed as `sinks`. The variable may name several, separated by spaces."""
    text = f"{text}  [env var: {SINK_VARIABLE}]"
    return click.option("--sink", "sinks", metavar="URL", multiple=True, envvar=SINK_VARIABLE, help=text)


def dashboard_option(command: Command) -> Command:
    """--dashboard, passed as `dashboard`."""
    text = "Also serve the dashboard on this machine until the crawl ends: see `shoal serve`."
    return click.option("--dashboard", is_flag=True, help=text)(command)


def argument_option(command: Command) -> Command:
    """-a, passed as `arguments`: the spider's arguments by name."""

    def parsed(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
        found: dict[str, str] = {}
        for one in given:
            name, sign, text = one.partition("=")
            if not sign or not name.isidentifier():
                raise UsageError(f"-a {one}: write it as -a NAME=VALUE")
            if name in found:
                raise UsageError(f"-a {name} is given twice: give it once")
            found[name] = text
        return found

    return click.option(
        "-a",
        "--argument",
        "arguments",
        metavar="NAME=VALUE",
        multiple=True,
        callback=parsed,
        help="An argument of the spider's __init__, or one of its attributes; repeatable.",
    )(command)


def log_options(command: Command) -> Command:
    """--log-format, --log-level and -v: applied before the command runs, not passed to it."""

    @functools.wraps(command)
    def wrapped(*args: Any, log_format: str, log_level: str | None, verbose: int, **options: Any) -> Any:
        from shoal.cli.display.log_lines import begin_logs

        level = log_level or (None, "info", "debug")[min(verbose, 2)]
        begin_logs("json" if log_format == "json" else "text", level, is_of_fleet=options.get("parent") is not None)
        return command(*args, **options)

    choices = click.Choice(["debug", "info", "warning", "error"], case_sensitive=False)
    level_text = "Log lines from this level on.  [default: warning; json: info]"
    format_text = "json: messages and log lines on stderr, one JSON object per line."
    for decorate in (
        click.option("-v", "--verbose", count=True, help="Same as --log-level info; -vv: --log-level debug."),
        click.option("--log-level", type=choices, envvar=LOG_LEVEL_VARIABLE, help=level_text),
        click.option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            envvar=LOG_FORMAT_VARIABLE,
            help=format_text,
        ),
    ):
        wrapped = decorate(wrapped)
    return wrapped


def kinds_option(command: Command) -> Command:
    """--kinds, for commands that run workers."""
    return kinds_with("Do only tasks of these kinds.  [default: the spider's kind, else http]")(command)


def kinds_with(text: str) -> Callable[[Command], Command]:
    """--kinds, passed as `kinds`: a tuple, empty if not given."""

    def parsed(_: click.Context, __: click.Parameter, given: str | None) -> tuple[str, ...]:
        from shoal.settings.values import parse_kinds

        return () if given is None else parse_kinds(given)

    return click.option("--kinds", metavar="KIND,…", callback=parsed, help=text)


def yes_option(command: Command) -> Command:
    """--yes, passed as `yes`."""
    return click.option("--yes", is_flag=True, help="Do not ask, even if other workers run the crawl now.")(command)


def json_option(command: Command) -> Command:
    """--json, passed as `as_json`."""
    return json_with()(command)


def json_with(*fields: str) -> Callable[[Command], Command]:
    """--json, passed as `as_json`; its help names the fields of the document."""
    text = ": ".join(["One JSON document on stdout, for scripts", *([", ".join(fields)] if fields else [])])
    return click.option("--json", "as_json", is_flag=True, help=f"{text}.")


def check_json_output(*outputs: str | None, as_json: bool) -> None:
    """Refuse --json together with items on standard output: a script could not separate them."""
    if as_json and "-" in outputs:
        raise UsageError("-o - and --json would both write to standard output: give -o a file, or leave out --json")


def output_option(text: str, *, required: bool = False) -> Callable[[Command], Command]:
    """-o for commands that write one file; given twice it is refused."""

    def the_only(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> str | None:
        if len(given) > 1:
            raise UsageError(f"-o is given {len(given)} times, and this command writes one file: run it once for each")
        return given[0] if given else None

    return click.option(
        "-o", "--output", metavar="FILE", multiple=True, required=required, callback=the_only, help=text
    )


def crawl_argument(command: Command) -> Command:
    """CRAWL: an id, or a spider's name for its newest crawl."""
    return click.argument("crawl", required=False)(command)


def places_of(frontier: str, store: str | None, *, archive: str | None = None, other_store: bool = False) -> Places:
    """The places from the flags. An empty store means the crawl's own."""
    from shoal.crawl.opening import Places

    return Places(frontier=frontier, store=store or "", archive=archive, other_store=other_store)


def check_exists(places: Places) -> None:
    """Refuse a missing file: opening it would create it."""
    path = file_of(places.frontier)
    if path is not None and not Path(path).exists():
        raise UsageError(
            f"there is no {path} here{named_by(FRONTIER_VARIABLE, places.frontier)}: `shoal run FILE` or `shoal crawl"
            " URL` creates one, --frontier names another"
        )


def store_option(command: Command) -> Command:
    """--store alone, for commands that need no frontier."""
    return click.option(
        "--store",
        metavar="URL",
        default=DEFAULT_FILE,
        show_default=True,
        envvar=STORE_VARIABLE,
        show_envvar=True,
        callback=checked_place,
        help="Where the items are.",
    )(command)


def checked_place(context: click.Context, option: click.Parameter, url: str | None) -> str | None:
    """The URL. A server without its scheme is refused: as a file name its password would be shown."""
    if url:
        where = _given_by(context, option)
        check_place(url, where=where)
        if is_pipe(url):
            raise UsageError(
                f"{where} {masked(url)} is a pipe: give it to `shoal serve --pipe` and `shoal worker --pipe`"
            )
    return url


def _given_by(context: click.Context, option: click.Parameter) -> str:
    """The variable or flag that named a place, for messages."""
    is_variable = context.get_parameter_source(option.name or "") is click.core.ParameterSource.ENVIRONMENT
    return str(option.envvar) if is_variable else f"--{option.name}"


def described(name: str) -> str:
    """The help text of a setting."""
    metas = getattr(FIELDS[name].type, "__metadata__", ())
    return next((meta.description for meta in metas if meta.description), "")


def _sentence(name: str) -> str:
    text = described(name)
    return text[:1].upper() + text[1:]


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--set {text!r} is not understood: write --set NAME=VALUE")
    return name.strip().replace("-", "_"), value
