"""Programs that tests start as servers: where they are installed, what happens when one is missing, free ports."""

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
_OUR_PORTS = (15_000, 32_000)  # below those that Linux and macOS give out


def find_program(name: str) -> str:
    """The path of an installed server. A missing one skips the test on a laptop and fails it where CI is set."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    return path or missing(name)


def missing(name: str) -> NoReturn:
    """A missing server skips the test on a laptop and fails it where CI is set."""
    import pytest  # here alone: `shoal chaos` starts servers too, without a test around it

    if os.environ.get("CI"):
        pytest.fail(f"{name} is not installed: apt-get install {name}")
    pytest.skip(f"{name} is not installed")


def wait_for_answer(process: subprocess.Popen[Any] | None, answers: Callable[[], bool]) -> None:
    """Wait until a server that was just started answers; a RuntimeError when it ends instead, or takes too long."""

    def has_started() -> bool:
        if process is None or process.poll() is not None:
            raise RuntimeError("it ended by itself")
        return answers()

    wait_until(has_started, otherwise="it does not answer", seconds=START_SECONDS)


def free_port() -> int:
    """A loopback port on which no server listens. It is none of those that the system gives to connections and to
    servers without a port of their own: such a port may be taken before the caller's server is up."""
    while True:
        port = random.SystemRandom().randrange(*_OUR_PORTS)  # never the same numbers as another process
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
