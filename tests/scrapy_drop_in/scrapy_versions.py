"""The releases of Scrapy, and the ways to run its event loop, that the most telling tests are repeated with. The
newest release is that of the environment; `make test-all` installs those of matrix.txt beside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pytest

HERE = Path(__file__).parent
INSTALLED = Path(sys.prefix) / "scrapy_matrix"

ASYNCIO: tuple[str, ...] = ()  # Scrapy's own default
TWISTED_DEFAULT = ("-s", "TWISTED_REACTOR=")
NO_REACTOR = ("-s", "TWISTED_REACTOR_ENABLED=0")


class ScrapyVersion(NamedTuple):
    """`version`: empty for that of the environment. `reactor`: the options that choose it."""

    version: str = ""
    reactor: tuple[str, ...] = ASYNCIO

    @property
    def folder(self) -> Path | None:
        """Where the release is installed; None: in the environment. Where it is missing, the test is skipped on a
        laptop, and fails where CI is set."""
        if not self.version:
            return None
        folder = INSTALLED / self.version
        if not (folder / "scrapy").is_dir():
            why = f"Scrapy {self.version} is not installed: `make test-all` installs it where there is a network"
            if os.environ.get("CI"):
                pytest.fail(why)
            pytest.skip(why)
        return folder

    @property
    def log_lines(self) -> tuple[str, str]:
        """What Scrapy logs at its beginning where this is what runs."""
        using = {
            ASYNCIO: "Using reactor: twisted.internet.asyncioreactor.AsyncioSelectorReactor",
            TWISTED_DEFAULT: "Using reactor: twisted.internet.epollreactor.EPollReactor",
            NO_REACTOR: "Not using a Twisted reactor",
        }
        return f"Scrapy {self.version or version('scrapy')} started", using[self.reactor]

    def __str__(self) -> str:
        reactor = {ASYNCIO: "asyncio", TWISTED_DEFAULT: "twisted", NO_REACTOR: "none"}[self.reactor]
        return f"{self.version or 'newest'}-{reactor}"


def _full(versions: Iterable[ScrapyVersion]) -> list[Any]:
    return [pytest.param(version, marks=pytest.mark.full) for version in versions]


OLDER = [line.partition("==")[2] for line in (HERE / "matrix.txt").read_text().split()]
# `make test` has the newest release as it comes, the others are for `make test-all`.
VERSIONS = [ScrapyVersion(), *_full(ScrapyVersion(older) for older in OLDER)]
# Without a reactor the newest alone: older ones have no HTTP client for that among their own dependencies.
REACTORS = _full(ScrapyVersion(reactor=reactor) for reactor in (TWISTED_DEFAULT, NO_REACTOR))
EVERY_REACTOR = [*VERSIONS, *REACTORS, *_full(ScrapyVersion(older, TWISTED_DEFAULT) for older in OLDER)]

every_version = pytest.mark.parametrize("project", VERSIONS, indirect=True, ids=str)
every_version_then_every_reactor = pytest.mark.parametrize("project", [*VERSIONS, *REACTORS], indirect=True, ids=str)
every_version_on_every_reactor = pytest.mark.parametrize("project", EVERY_REACTOR, indirect=True, ids=str)
