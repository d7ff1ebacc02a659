"""What Scrapy's command line says of this process: Scrapy tells neither its scheduler nor its add-ons."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import PurePath

# These commands try a page or two by hand, and are no part of a crawl.
LOOKING = frozenset({"bench", "check", "fetch", "parse", "shell", "view"})
CRAWLING = frozenset({"crawl", "runspider"})


def is_looking(argv: Sequence[str]) -> bool:
    """Whether the process is one of Scrapy's commands that look at pages."""
    return _is_of_scrapy(argv) and argv[1] in LOOKING


def arguments(argv: Sequence[str]) -> dict[str, str]:
    """The spider's arguments of `scrapy crawl -a name=value`. Those that begin with an underscore, such as the number
    of its job that scrapyd gives each process, are no part of what the spider crawls."""
    if len(argv) < 2 or argv[1] not in CRAWLING:
        return {}
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-a", action="append", default=[])
    given = parser.parse_known_args(argv[2:])[0].a
    pairs = (text.partition("=") for text in given if "=" in text)
    return {name: value for name, _, value in pairs if not name.startswith("_")}


def _is_of_scrapy(argv: Sequence[str]) -> bool:
    if len(argv) < 2:
        return False
    program = PurePath(argv[0])
    return program.stem == "scrapy" or program.parts[-2:] in (("scrapy", "__main__.py"), ("scrapy", "cmdline.py"))
