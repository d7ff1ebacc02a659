"""Commands of `shoal` called in the process of the tests: what they print, without the start of a process for each."""

from __future__ import annotations

import contextlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from click.testing import CliRunner, Result

from shoal.cli.main import shoal


def call_shoal(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Call a command in a folder, without the settings of our environment; it must end with this code."""
    environ = {name: None for name in os.environ if name.startswith("SHOAL_")}
    # In a thread: a command runs an event loop of its own, and the test may have one.
    with contextlib.chdir(folder), ThreadPoolExecutor(1) as thread:
        result: Result = thread.submit(CliRunner().invoke, shoal, arguments, env=environ).result()
    assert result.exit_code == code, f"{arguments}: {result.exit_code}\n{result.output}\n{result.exception!r}"
    return subprocess.CompletedProcess(arguments, code, stdout=result.stdout, stderr=result.stderr)
