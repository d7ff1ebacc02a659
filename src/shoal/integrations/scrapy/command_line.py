"""What Scrapy's command line says of this process: Scrapy tells neither its scheduler nor its add-ons."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import PurePath

# These commands try a page or two by hand, and are no part of a crawl.
LOOKING = frozenset({"bench", "check", "fetch", "parse", "shell", "view"})
CRAWLING = frozenset({"crawl", "runspider"})
_PROGRAMS = frozenset({"scrapy", "scrapy.exe", "scrapy.cmdline", "scrapyd.runner"})
_FILES = frozenset({("scrapy", "__main__.py"), ("scrapy", "cmdline.py"), ("scrapyd", "runner.py")})
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})  # options of Python; -m is followed by the program


def is_looking(command_line: Sequence[str]) -> bool:
    """Whether the process is one of Scrapy's commands that look at pages. `command_line` is `sys.orig_argv`: of
    `sys.argv`, Scrapy takes the command away."""
    return _command(command_line)[0] in LOOKING


def is_crawling(command_line: Sequence[str]) -> bool:
    """Whether the process is one of Scrapy's commands that run one spider and end."""
    return _command(command_line)[0] in CRAWLING


def arguments(command_line: Sequence[str]) -> dict[str, str]:
    """The spider's arguments of `scrapy crawl -a name=value`. Those that begin with an underscore, such as the number
    of its job that scrapyd gives each process, are no part of what the spider crawls."""
    command, options = _command(command_line)
    if command not in CRAWLING:
        return {}
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-a", action="append", default=[])
    given = parser.parse_known_args(options)[0].a
    pairs = (text.partition("=") for text in given if "=" in text)
    return {name: value for name, _, value in pairs if not name.startswith("_")}


def _command(command_line: Sequence[str]) -> tuple[str, list[str]]:
    """The command of Scrapy and its options; an empty one, where another program runs."""
    words = list(command_line[1:])
    while words and words[0].startswith("-"):
        del words[: 2 if words[0] in _WITH_VALUE else 1]
    if not words:
        return "", []
    program, options = PurePath(words[0]), words[1:]
    if program.name not in _PROGRAMS and program.parts[-2:] not in _FILES:
        return "", []
    command = next((word for word in options if not word.startswith("-")), "")
    return command, options
