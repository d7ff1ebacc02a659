"""The command `shoal`: loads each subcommand when it is called, and turns every failure into a return code.

0 finished, 1 failed, 2 usage or settings, 3 a server cannot be reached, 130 interrupted and resumable.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
import traceback
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

import click

from shoal.errors import ShoalError
from shoal.text.near_names import nearest
from shoal.text.secrets import masked_text
from shoal.version import __version__

if TYPE_CHECKING:
    from shoal.worker.black_box import BlackBox

INTERRUPTED = 130
NEW_OBJECTS = 20_000
_NO_NUMBER = re.compile(r"is not a valid integer( range)?")
# The return code of a program that SIGPIPE ended: `shoal status | head` is not a failure.
BROKEN_PIPE = 141

CRAWL_HELP = "CRAWL is a crawl's id, or a spider's name for its newest crawl; leave it out if there is only one choice."

# As `shoal --help` shows them; the file of a command in this folder has its name.
GROUPS = {
    "Start": ("demo", "crawl", "run", "worker", "add", "import"),
    "Watch": ("status", "top", "crawls", "why", "advise"),
    "Steer": ("pause", "resume", "cancel", "delete", "pace", "priority", "dead", "exits"),
    "Results": ("export", "diff", "page", "replay", "warc", "sql", "sink", "store"),
    "Operate": ("serve", "alerts", "schedule", "settings", "deploy", "chaos"),
}
COMMANDS = tuple(name for names in GROUPS.values() for name in names)


class Invocation:
    """The running command, as click's object. `box`: shared memory in which it notes for its parent that it ended
    normally."""

    def __init__(self) -> None:
        self.box: BlackBox | None = None

    def end(self) -> None:
        """Note a normal end: the return code is the command's own."""
        if self.box is not None:
            self.box.end()


class Commands(click.Group):
    """Imports a command's module only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        # A keyword (`import`) cannot be the name of a module or a function.
        name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command = getattr(importlib.import_module(f"shoal.cli.{name}"), name)
        return _explained(command) if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, names in GROUPS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), command.get_short_help_str(100)) for name, command in commands if command]
                )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The named command. A misspelt name gets a suggestion here: click knows only loaded commands."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = nearest(args[0], COMMANDS)
            meant = f". Did you mean '{near}'?" if near else ""
            ctx.fail(f"No such command '{args[0]}'{meant}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            _silence_stdout()
            return BROKEN_PIPE

    def main(self, args: Any = None, *rest: Any, **extra: Any) -> Any:
        """Run and exit. A failure that people can act on is one line on stderr."""
        arguments = list(sys.argv[1:] if args is None else args) or ["--help"]
        try:
            _read_environment()
            result = super().main(arguments, *rest, **{"prog_name": "shoal", **extra, "standalone_mode": False})
            code = result if isinstance(result, int) else 0
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            code = error.exit_code
        except click.ClickException as error:
            code = _refuse(_usage_line(error), error.exit_code)
        except ShoalError as error:
            code = _refuse(str(error), error.return_code)
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
    # Objects of modules are never garbage: scanning them took 4 % of a short run.
    gc.set_threshold(NEW_OBJECTS)
    code: Any = 1
    invocation = Invocation()
    try:
        shoal.main(obj=invocation)
    except SystemExit as end:
        code = end.code
    except BaseException:
        # A spider's error may quote a password that the spider sent.
        sys.stderr.write(masked_text(traceback.format_exc()))
    sys.stdout.flush()
    sys.stderr.flush()
    invocation.end()
    # Everything is closed. The HTTP client's thread may still run, and can abort a Python that is shutting down.
    os._exit(code if isinstance(code, int) else 0)


def _explained(command: click.Command) -> click.Command:
    """The command, with an explanation of CRAWL in its help."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _explained(inner)
    names = {
        one.human_readable_name.lower()
        for one in command.params
        if isinstance(one, click.Argument) and not one.required
    }
    if names & {"crawl", "[crawl]"}:
        command.epilog = CRAWL_HELP
    return command


def _read_environment() -> None:
    """Refuse misspelt SHOAL_ variables, and replace each SHOAL_…_FILE by the contents of its file. The code for it is
    loaded only if there are SHOAL_ variables."""
    names = [name for name in os.environ if name.startswith("SHOAL_")]
    if names:
        variables = importlib.import_module("shoal.settings.variables")
        variables.check_names(os.environ)
        variables.read_secret_files(os.environ)


def _refuse(line: str, code: int) -> int:
    click.echo(f"shoal: {line}", err=True)
    return code


def _usage_line(error: click.ClickException) -> str:
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        error = click.NoSuchOption(error.option_name, possibilities=error.possibilities[:1], ctx=error.ctx)
    message = _NO_NUMBER.sub("is not a whole number", " ".join(error.format_message().split()).rstrip("."))
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    return f"{message}{'' if message.endswith('?') else ';'} `{context.command_path} --help` shows how"


def _silence_stdout() -> None:
    """After the reader closed the pipe: buffered output must not fail again when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
