"""Commands that documents and files of deployments name, held against the real command line."""

from __future__ import annotations

from collections.abc import Iterable

import click

from shoal.cli.main import shoal


def check_words(words: Iterable[str]) -> None:
    """Fail on a command, an option or a value that the real command line does not take."""
    command: click.Command = shoal
    rest = list(words)
    while isinstance(command, click.Group):
        name = rest.pop(0)
        found = command.get_command(click.Context(shoal), name)
        if found is None:
            raise click.UsageError(f"there is no command {name}")
        command = found
    with command.make_context("shoal", rest):
        pass
