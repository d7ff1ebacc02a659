"""Programs that tests start as servers: found, or missed with one clear line; free ports; waiting for a start."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from typing import NoReturn

START_SECONDS = 20.0


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


def wait_until(is_so: Callable[[], bool], otherwise: str) -> None:
    """Wait for a server to be as it should; the error says what it did not do."""
    deadline = time.monotonic() + START_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(otherwise)
        time.sleep(0.02)


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
