"""Server programs for tests: where they are installed, what happens if one is missing, free ports."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Callable
from typing import Any, NoReturn

from shoal.testing.waiting import wait_until

START_SECONDS = 120.0  # only a server that does not start takes this long
_OUR_PORTS = (15_000, 32_000)  # below the ports that Linux and macOS assign


def find_program(name: str) -> str:
    """The path of an installed server. A missing one skips the test on a laptop and fails it where CI is set."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    return path or missing(name)


def missing(name: str) -> NoReturn:
    """A missing server skips the test on a laptop and fails it where CI is set."""
    import pytest  # only here: `shoal chaos` starts servers without pytest

    if os.environ.get("CI"):
        pytest.fail(f"{name} is not installed: apt-get install {name}")
    pytest.skip(f"{name} is not installed")


def wait_for_answer(process: subprocess.Popen[Any] | None, answers: Callable[[], bool]) -> None:
    """Wait until a starting server answers; RuntimeError if it ends or takes too long."""

    def has_started() -> bool:
        if process is None or process.poll() is not None:
            raise RuntimeError("it ended by itself")
        return answers()

    wait_until(has_started, otherwise="it does not answer", seconds=START_SECONDS)


def free_port() -> int:
    """A free loopback port, outside of the range from which the system assigns ports: such a port could be taken before
    the server starts."""
    while True:
        port = random.SystemRandom().randrange(*_OUR_PORTS)  # not the numbers of another process
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
