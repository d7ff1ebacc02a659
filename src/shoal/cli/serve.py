"""`shoal serve`: the dashboard and the HTTP API to watch and steer crawls."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.display.screen import Screen
from shoal.cli.options import json_with, log_options, pipe_option, place_options, sink_option
from shoal.errors import UsageError
from shoal.settings.layers import file_layer, resolve
from shoal.settings.table import CONFIG_FILE, READER_VARIABLE, TOKEN_VARIABLE

if TYPE_CHECKING:
    from shoal.crawl.opening import Places
    from shoal.duties.schedules.config import Schedule
    from shoal.serve.access import Access

PORT = 8642


@click.command(short_help="Watch and steer crawls in a browser, or over HTTP.")
@click.option("--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65_535),
    default=PORT,
    show_default=True,
    help="Port to listen on; 0: any free port.",
)
@click.option("--spiders", metavar="FOLDER", help="Folder with spider files that clients may start.")
@click.option("--no-schedules", is_flag=True, help="Start no scheduled runs: another `shoal serve` does.")
@click.option(
    "--token-file", metavar="FILE", help=f"File with the token that clients must send.  [env var: {TOKEN_VARIABLE}]"
)
@click.option(
    "--reader-token-file", metavar="FILE", help=f"File with a token for read-only access.  [env var: {READER_VARIABLE}]"
)
@click.option(
    "--public-host",
    metavar="NAME",
    multiple=True,
    help="Host name that people use, for instance through a proxy; repeatable.",
)
@sink_option("A sink with its password, to send changes to; sinks without a password need no flag; repeatable.")
@click.option("--parent", type=int, hidden=True, help="Stop when this process is no longer the parent.")
@pipe_option("Also coordinate the workers at this pipe:")
@log_options
@place_options(exists=False, archive=True)
@json_with("url")
def serve(*, places: Places, host: str, port: int, **options: object) -> None:
    """Watch and steer crawls in a browser, or over HTTP. To listen for other machines it needs a token.

    \b
    Example: shoal serve --frontier redis://queue/0 --store postgresql://db/shop
    """
    from shoal.cli.loop import run
    from shoal.cli.process.dashboard import check_extra

    check_extra()
    run(_serve(places, host, port, options))


async def _serve(places: Places, host: str, port: int, options: dict[str, object]) -> None:
    from shoal.cli.process.signals import stop_without
    from shoal.duties.alerts.config import load_alerts
    from shoal.serve.app import bound_socket, build_app, serve_until, shown_address
    from shoal.serve.parts import parts_at
    from shoal.sinks.pump import sinks_given

    access = _access(host, options)
    spiders = options["spiders"]
    folder = None if spiders is None else Path(str(spiders))
    # A misspelt table or setting is refused here, as in a run.
    resolve([file_layer(Path(CONFIG_FILE))])
    config = Path(CONFIG_FILE)
    schedules = _schedules(config, options)
    parts = parts_at(places, access=access, spiders=folder, alerts=load_alerts(config), schedules=schedules)
    given = options["sinks"]
    parts.sinks = sinks_given(given if isinstance(given, tuple) else ())
    # Beside a run (--dashboard), the run does both.
    parts.feeds_sinks = parts.marks_gone = options["parent"] is None
    listener = bound_socket(host, port)
    screen = Screen()
    app = build_app(parts, say=screen.say)
    # Before the URL is printed: its reader may stop this process at once.
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    url = f"http://{shown_address(host, listener.getsockname()[1])}/"
    if options["as_json"]:
        screen.json({"url": url})
    else:
        screen.line(f"serving {url}")
    sys.stdout.flush()
    watching = asyncio.create_task(stop_without(options["parent"], stop))
    async with _pumping(options["pipe"], places, say=screen.say, stop=stop):
        await serve_until(stop, app, listener)
    watching.cancel()


def _schedules(config: Path, options: dict[str, object]) -> dict[str, Schedule] | None:
    """The schedules of shoal.toml; None: run none. A mistake in them is refused even then."""
    from shoal.duties.schedules.config import load_schedules

    found = load_schedules(config)
    if options["no_schedules"] or options["parent"] is not None:
        return None
    if found and options["spiders"] is None:
        raise UsageError(
            f"{config} has schedules, but no spiders to start: give --spiders FOLDER, or --no-schedules if another"
            " `shoal serve` runs them"
        )
    return found


def _pumping(
    pipe: object, places: Places, *, say: Callable[[str], None], stop: asyncio.Event
) -> contextlib.AbstractAsyncContextManager[None]:
    """The coordinator at the pipe, if one was given."""
    if not pipe:
        return contextlib.nullcontext()
    from shoal.run.intakes import coordinating

    return coordinating(str(pipe), places, say=say, stop=stop)


def _access(host: str, options: dict[str, object]) -> Access:
    from shoal.serve.access import Access, is_loopback, is_wildcard

    token = _token(options["token_file"], TOKEN_VARIABLE)
    reader_token = _token(options["reader_token_file"], READER_VARIABLE)
    if not token and not reader_token and not is_loopback(host):
        raise UsageError(
            f"--host {host} can be reached from other machines: set a token with --token-file or {TOKEN_VARIABLE}"
        )
    public = options["public_host"]
    names = [host, *(public if isinstance(public, tuple) else ())]
    return Access(token=token, reader_token=reader_token, hosts=names, any_address=is_wildcard(host))


def _token(file: object, variable: str) -> str:
    if file is None:
        return os.environ.get(variable, "")
    try:
        text = Path(str(file)).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the token file {file} cannot be read: {error}") from None
    if not text:
        raise UsageError(f"the token file {file} is empty: write the token into it")
    return text
