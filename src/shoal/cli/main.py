"""The command `shoal`: loads each subcommand when it is called, and gives every failure its exit code.

0 finished, 1 failed, 2 usage or settings, 3 a server cannot be reached, 130 interrupted and resumable.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any

import click

from shoal.errors import ShoalError
from shoal.secrecy import masked_text
from shoal.version import __version__

INTERRUPTED = 130
# The code of a program that SIGPIPE ended: `shoal status | head` is no failure.
BROKEN_PIPE = 141

# In the order in which people meet them; the value is the module in `commands/`.
COMMANDS = {
    "demo": "demo",
    "crawl": "crawl_site",
    "run": "run",
    "worker": "join",
    "add": "add",
    "status": "status",
    "top": "top",
    "exits": "exit_table",
    "pause": "steer",
    "resume": "steer",
    "cancel": "steer",
    "pace": "steer",
    "why": "why",
    "dead": "dead_letters",
    "export": "export_items",
    "page": "archived_page",
    "replay": "replay_pages",
    "warc": "warc_file",
    "sql": "sql",
    "store": "store_upkeep",
    "chaos": "chaos_run",
    "settings": "settings_table",
}


class Commands(click.Group):
    """Imports a command's module only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"shoal.cli.commands.{COMMANDS[cmd_name]}")
        command = getattr(module, cmd_name)
        return command if isinstance(command, click.Command) else None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            _silence_stdout()
            return BROKEN_PIPE

    def main(self, args: Any = None, *rest: Any, **extra: Any) -> Any:
        """Run and exit. Every failure people can act on is one line on stderr."""
        arguments = list(sys.argv[1:] if args is None else args) or ["--help"]
        try:
            result = super().main(arguments, *rest, **{"prog_name": "shoal", **extra, "standalone_mode": False})
            code = result if isinstance(result, int) else 0
        except click.ClickException as error:
            code = _refuse(_usage_line(error), error.exit_code)
        except ShoalError as error:
            code = _refuse(str(error), error.exit_code)
        except (KeyboardInterrupt, click.Abort):
            code = _refuse("interrupted", INTERRUPTED)
        sys.exit(code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="shoal", message="%(prog)s %(version)s")
def shoal() -> None:
    """Web scraping that grows with you: one spider file, on a laptop or on a fleet.

    \b
    shoal demo                           see a crawl from start to results
    shoal crawl https://example.com/     no code: every page of a site
    shoal run books.py --workers 4       your own spider, on four processes
    """


def main() -> None:
    """The entry point."""
    code: Any = 1
    try:
        shoal.main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        # It may be a spider's error, and quote a password that the spider sent.
        sys.stderr.write(masked_text(traceback.format_exc()))
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is closed. The HTTP client's thread may still run, and can abort a Python that is shutting down.
    os._exit(code if isinstance(code, int) else 0)


def _refuse(line: str, code: int) -> int:
    click.echo(f"shoal: {line}", err=True)
    return code


def _usage_line(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message}; `{context.command_path} --help` shows how" if context else message


def _silence_stdout() -> None:
    """The reader has closed the pipe: output that is still buffered must not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
