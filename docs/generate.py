"""Writes docs/reference/ from the code: `python docs/generate.py`. With `--check` it only says what is stale.

What can be told from the code is not written by hand: the Python API from its docstrings, the commands from click's
help, the settings from their table, the reasons and outcomes from the tables that decide them, the metrics from what
collects them, the HTTP API from its types.
"""

from __future__ import annotations

import json
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import click

from api_page import api_page
from markdown_page import page, table
from metrics_page import metrics_page
from shoal.backends import BACKENDS
from shoal.cli.main import COMMANDS, shoal
from shoal.exits.refusals import FAILURES, REFUSALS
from shoal.fetch.base import REDIRECTS, FaultKind
from shoal.policy import pace, politeness
from shoal.policy.retries import FAULTS, RETRIED_STATUSES, Verdict
from shoal.serve.api.openapi import document
from shoal.serve.api.table import OPERATIONS
from shoal.settings.table import FIELDS
from shoal.settings.variables import VARIABLES
from shoal.urls.canonical import REASONS
from shoal.version import install_command

FOLDER = Path(__file__).resolve().parent / "reference"
WIDTH = 100

SHOWN_DEFAULTS = 3
FAULT_TEXTS = {
    FaultKind.DNS: "the host name has no address",
    FaultKind.REFUSED_ADDRESS: "the host's address is private or special, and allow_private is off",
    FaultKind.CONNECT: "the connection was refused or broken",
    FaultKind.TLS: "the certificate or the handshake is not in order",
    FaultKind.TIMEOUT_CONNECT: "no connection within connect_seconds",
    FaultKind.TIMEOUT_FIRST_BYTE: "no answer within first_byte_seconds",
    FaultKind.TIMEOUT_IDLE: "silence for idle_seconds inside the answer",
    FaultKind.TIMEOUT_TOTAL: "the whole answer took longer than total_seconds; rendered: than render_seconds",
    FaultKind.TRUNCATED: "the answer ended early",
    FaultKind.TOO_LARGE: "the page is larger than max_body_bytes, or goes beyond render_requests or render_bytes",
    FaultKind.BOMB: "the page grows more than max_ratio times by decompression",
    FaultKind.BAD_ENCODING: "the body is not what its Content-Encoding says",
    FaultKind.BAD_URL: "no request can be made of this URL and these headers",
    FaultKind.PROTOCOL: "the answer is not HTTP",
    FaultKind.EXIT: "the exit cannot be used",
    FaultKind.BROWSER: "the browser, or the page's process in it, died or gave no page (`render`)",
    FaultKind.LOCAL: "something on this machine failed",
    FaultKind.SHORTAGE: "this machine lacks open files, ports, memory or a browser; tried again soon, without limit",
}


def main(arguments: list[str]) -> int:
    """Write what is stale, or with `--check` name it; the return code says whether anything was."""
    pages = {
        "api.md": api_page(),
        "cli.md": cli_page(),
        "settings.md": settings_page(),
        "reasons.md": reasons_page(),
        "metrics.md": metrics_page(),
        "urls.md": urls_page(),
        "openapi.json": json.dumps(document(OPERATIONS), indent=1) + "\n",
    }
    stale = [name for name, text in pages.items() if _read(FOLDER / name) != text]
    if "--check" in arguments:
        for name in stale:
            sys.stderr.write(f"docs/reference/{name} is stale: run `python docs/generate.py`\n")
        return int(bool(stale))
    FOLDER.mkdir(exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(pages[name], encoding="utf-8")
        sys.stdout.write(f"wrote docs/reference/{name}\n")
    return 0


def cli_page() -> str:
    """Every command's help."""
    root = click.Context(shoal, info_name="shoal", terminal_width=WIDTH, **shoal.context_settings)
    parts = [
        "# Commands",
        "CRAWL is a crawl's id, or a spider's name for its newest crawl; leave it out if there is only "
        "one choice. Return codes: 0 finished, 1 failed, 2 usage or settings, 3 a server cannot be reached, 130 "
        "interrupted and resumable; [when a crawl is a failure](../how-to/return-codes.md).",
        _help(shoal, root),
    ]
    for name in COMMANDS:
        command = shoal.get_command(root, name)
        if command is None:
            raise SystemExit(f"shoal {name} is announced in COMMANDS, but there is no such command")
        parts += _command_parts(command, root, name)
    return page(parts)


def _command_parts(command: click.Command, parent: click.Context, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent, terminal_width=WIDTH)
    yield f"## {context.command_path}"
    yield _help(command, context)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            if found is not None:
                yield from _command_parts(found, context, inner)


def _help(command: click.Command, context: click.Context) -> str:
    lines = command.get_help(context).splitlines()
    return "```text\n" + "\n".join(line.rstrip() for line in lines) + "\n```"


def settings_page() -> str:
    """Every setting, its kind, default and flag."""
    flags = _flags()
    rows = [
        (f"`{name}`", _kind(field.type), _written(field.default), flags.get(name, ""), _described(field.type))
        for name, field in FIELDS.items()
    ]
    parts = [
        "# Settings",
        "Where a value may stand and which one wins: [how to use settings](../how-to/settings.md). Settings without a "
        "flag of their own are given as `--set NAME=VALUE`. `shoal settings` shows the values in force.",
        table(("setting", "kind", "default", "flag", "what it is for"), rows),
        "## Variables",
        "Each setting has its variable: `SHOAL_` and its name in capitals. These are no settings. A flag wins over its "
        "variable. A variable with `_FILE` behind its name holds the path of a file with the value, one with "
        "`_PASSWORD_FILE` that of a file with the password: "
        "[secrets in files](../how-to/settings.md#secrets-in-files).",
        table(("variable", "flag", "default", "what it names", "in files"), map(_variable_row, VARIABLES)),
    ]
    return page(parts)


def _variable_row(name: str) -> tuple[str, ...]:
    one = VARIABLES[name]
    flag = f"`{one.option}`" if one.option else ""
    return f"`{name}`", flag, one.default, one.text, ", ".join(f"`{ending}`" for ending in one.endings)


def _flags() -> dict[str, str]:
    """The flags of `shoal run` that set a setting."""
    run = shoal.get_command(click.Context(shoal), "run")
    params = run.params if run else []
    return {str(param.name): " ".join(f"`{flag}`" for flag in param.opts) for param in params if param.name in FIELDS}


def urls_page() -> str:
    """Every kind of URL that shoal takes."""
    rows = [
        (
            one.seam,
            one.name,
            ", ".join(f"`{scheme}`" for scheme in one.schemes),
            f"`{one.example}`",
            _installed(one.extra),
        )
        for one in BACKENDS
    ]
    parts = [
        "# Kinds of URLs",
        "What `--frontier`, `--store`, `--archive`, `--sink` and `--pipe` take. A path is a URL, too: that of a SQLite "
        "file for a frontier and a store, that of a folder for an archive.",
        table(("of a", "kind", "schemes", "for example", "to install"), rows),
    ]
    return page(parts)


def _installed(extra: str) -> str:
    return f"`{install_command(extra)}`" if extra else ""


def reasons_page() -> str:
    """Why URLs are kept out, and what each answer means for its task."""
    parts = [
        "# Reasons and outcomes",
        "The names that `shoal status`, `shoal why`, the summary and the dead letters use.",
        "## Why a URL did not become a task",
        table(("reason", "the URL was kept out because"), [(f"`{name}`", text) for name, text in REASONS.items()]),
        "## How a task ends",
        table(("outcome", "meaning"), _outcomes()),
        "## Statuses that are tried again",
        "A free retry uses up no attempt, and has its own cap, `max_free_retries`. 503 is free too when it comes with "
        "`Retry-After`. Any status can be handed to the spider instead with `handle_statuses`. Through an exit, "
        f"{', '.join(map(str, sorted(REFUSALS)))} are [the exit's](../decisions/0010-exits-are-chosen-at-lease.md).",
        table(("status", "retry", "slows the host"), [_verdict_row(s, v) for s, v in RETRIED_STATUSES.items()]),
        "## Faults: why there was no answer",
        "Through an exit "
        + ", ".join(f"`{kind}`" for kind in FAULTS if kind in FAILURES)
        + " are the exit's: the retry is free and at once.",
        table(
            ("fault", "meaning", "what follows", "slows the host"),
            [(f"`{kind}`", FAULT_TEXTS[kind], _action(v), _yes(v.slows)) for kind, v in FAULTS.items()],
        ),
        "## What an adaptive pace does",
        'With `pace = "adaptive"`, the default. Each change holds for all workers and is made once, however many '
        "answers call for it; see [how the pace holds](../explanation/pace.md).",
        table(("an answer that", "makes the interval between starts"), _paces()),
        "## What a search does",
        'With `pace = "search"`, at paces between `rate` and `max_rate`; slower ones are adaptive.',
        table(("what is seen at one interval", "makes the pace of the host"), _searched_paces()),
    ]
    return page(parts)


def _outcomes() -> list[tuple[str, str]]:
    redirects = ", ".join(map(str, sorted(REDIRECTS)))
    return [
        ("`ok`", "2xx: the spider's handler has dealt with it"),
        ("`not_modified`", "304 to a request that asked for the page only if it has changed: its items are there"),
        ("`redirected`", f"{redirects} with a Location: the target is a task of its own"),
        ("`handed_over`", "fetched and archived: workers of another kind handle it; only in the fetch log"),
        ("`archive`", "dead: its page was handed over, and is not in the archive"),
        ("`robots`", "not fetched: robots.txt disallows it"),
        ("`robots_unavailable`", "not fetched: " + REASONS["robots_unavailable"]),
        ("`http_404` and the like", "another final status: the handler is not called"),
        ("`dropped`", "a dead letter that `shoal dead drop` let go"),
        ("`handler`", "dead: the spider's handler raised or took too long; `shoal dead list -v` shows its traceback"),
        ("`too_complex`", "dead: parsing its HTML would take too long (`max_tags`, `max_nesting` and the like)"),
        ("`blocked`", "dead: turned away `max_exit_tries` times, or the spider's `page.blocked()` without an exit"),
        ("`no_exit`", "dead: no exit of its pool was healthy for `exit_patience`, or there is no such pool"),
        ("`login`, `logged_out`", "dead: the account could not be logged in, or the login did not last"),
        (
            "`worker lost`",
            "dead: every attempt, alone in its worker, ended with the loss of the worker",
        ),
        ("`redirect_loop`", "dead: " + REASONS["redirect_loop"]),
        ("`internal`", "dead: a fault of shoal's own; please report it"),
        ("a status or fault below", "dead: it came back until the attempts were used up"),
    ]


def _searched_paces() -> list[tuple[str, str]]:
    search = pace
    holds = f"{search.FIRST_HOLD:g} s, {search.LONGER:g} times as long each time, at most {search.LONGEST_HOLD:g} s"
    return [
        (
            f"answers as fast as usual, over {search.LOOK_SECONDS:g} s and {search.LOOK_ANSWERS} answers of the fleet,"
            f" of which a worker needs its share, {search.FEWEST_ANSWERS} to {search.ENOUGH_ANSWERS}",
            f"{search.COARSE:g} times as fast, {search.FINE:g} times near a known knee",
        ),
        (
            f"at half of the ranks, answers that take {search.RISEN:g} times as long as usual and"
            f" {search.RISEN_SECONDS * 1000:g} ms more, or {search.RISEN_OF_FEW:g} times where a worker has seen fewer"
            f" than {search.ENOUGH_ANSWERS}; {search.FAILED_SHARE:.0%} more failures than usual; one 429, 509 or 529",
            f"{search.BELOW:g} times the last one that went well; without one {1 / search.EASE:.2f} times as fast, and"
            f" {1 / search.EASE_AGAIN:.2f} times where that did not help",
        ),
        ("a knee at about the same pace as before", f"stay as it is for {holds}"),
        (
            f"slow answers after {search.MOST_EASED} slow-downs in a row, or for {search.STALE_SECONDS:g} s",
            "go on from there: they are what is usual now",
        ),
        (
            f"fewer than {search.PACED_SHARE:.0%} of the requests waited for their start slots",
            "no faster: something else limits the host",
        ),
    ]


def _paces() -> list[tuple[str, str]]:
    first = f"; {politeness.FIRST_SLOW_INTERVAL:g} s for a host without an interval"
    share, run = f"{politeness.TROUBLE:.0%}", politeness.TROUBLED_RUN
    return [
        (
            f"slows the host, while it refuses {share} of the latest requests, or {run} in a row",
            f"{politeness.SLOW_DOWN:g} times as long{first}",
        ),
        ("says that the host is asked too often (429, 509, 529)", f"{politeness.YIELD:g} times as long{first}"),
        (
            "slows the host with a `Retry-After`, while it answers the others",
            f"{politeness.YIELD:g} times as long, at most {politeness.YIELD_AT_MOST:g} times what `rate` asks for",
        ),
        (
            f"takes more than {politeness.SLOW_FLOOR:g} s and {politeness.SLOW_RATIO:g} times as long as usual",
            f"{politeness.EASE_OFF:g} times as long",
        ),
        (
            "is good, at any worker, and was lent at the interval that the host still has",
            f"{politeness.SPEED_UP:.0%} shorter, of an interval above a second {politeness.SPEED_UP:.0%} for each"
            f" second, {politeness.SPEED_UP_AT_MOST:.0%} at most; never shorter than `rate` asks for",
        ),
        ("any of these", f"{politeness.SLOWEST_INTERVAL:g} s at most, unless `rate` itself is slower"),
    ]


def _verdict_row(status: int, verdict: Verdict) -> tuple[str, str, str]:
    return str(status), "free" if verdict.free else "yes", _yes(verdict.slows)


def _action(verdict: Verdict) -> str:
    if verdict.action == "retry":
        return "free retry" if verdict.free else "retry"
    return "dead at once"


def _yes(value: bool) -> str:
    return "yes" if value else ""


def _kind(kind: Any) -> str:
    """A type as people would say it."""
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return _kind(typing.get_args(kind)[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in typing.get_args(kind))
    if origin is tuple or isinstance(kind, types.GenericAlias):
        return f"list of {_kind(typing.get_args(kind)[0])}"
    return {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}[kind.__name__]


def _described(kind: Any) -> str:
    return next((meta.description for meta in kind.__metadata__ if getattr(meta, "description", None)), "")


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        more = f" and {len(value) - SHOWN_DEFAULTS} more" if len(value) > SHOWN_DEFAULTS else ""
        return ", ".join(f"`{part}`" for part in value[:SHOWN_DEFAULTS]) + more
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:.10g}"
    return f"`{value}`" if value else ""


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
