"""Commands of one crawl in one folder, for the tests that start several of them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from called_here import call_shoal
from shoal.testing.waiting import eventually


class Commands:
    """Commands in one folder, those that still run ended with the test."""

    def __init__(self, folder: Path, frontier: str) -> None:
        self._folder = folder
        self._places = ["--frontier", frontier, "--store", "results.db"]
        self._stack = contextlib.ExitStack()

    def start(self, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        """The process and the file with its messages."""
        log = self._folder / f"{arguments[0]}-{len(list(self._folder.iterdir()))}.log"
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal", *arguments, *self._places],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=self._stack.enter_context(log.open("wb")),
        )
        self._stack.callback(self._end, process)
        return process, log

    def output(self, *arguments: str) -> Any:
        return json.loads(self.done(*arguments, "--json"))

    def done(self, *arguments: str, has_store: bool = True) -> str:
        """What a command prints that only looks: it is called in this process."""
        return call_shoal(self._folder, *arguments, *self._places[: 4 if has_store else 2]).stdout

    def close(self) -> None:
        self._stack.close()

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.terminate()
        process.wait(20)


async def ended(process: subprocess.Popen[bytes]) -> int:
    await eventually(lambda: process.poll() is not None, seconds=60)
    assert process.returncode is not None
    return process.returncode
