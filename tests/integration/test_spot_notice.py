"""The notice of a spot machine: asked for at a metadata service on loopback, and answered by stopping the units."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path

import pytest

from shoal.testing.waiting import wait_until

SCRIPT = files("shoal.deploy") / "templates" / "systemd" / "spot_notice.py"
UNITS = ["shoal-books-worker@*.service", "shoal-books-crawl.service"]
TOKEN = "token-of-this-machine"
NOTICE = b'{"action": "terminate", "time": "2026-03-01T08:22:00Z"}'


class Metadata(ThreadingHTTPServer):
    """Answers as the metadata service does: nobody learns anything without a token. `status` is that of a notice."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked = 0
        self.status = 404


class Answer(BaseHTTPRequestHandler):
    server: Metadata

    def do_PUT(self) -> None:
        is_right = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self._answer(200 if is_right else 400, TOKEN.encode())

    def do_GET(self) -> None:
        if self.headers["X-aws-ec2-metadata-token"] != TOKEN:
            self._answer(401, b"")
        elif self.path == "/latest/meta-data/spot/instance-action":
            self.server.asked += 1
            self._answer(self.server.status, NOTICE)
        else:
            self._answer(404, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name that it overrides
        """Says nothing."""


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    with Metadata() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@contextlib.contextmanager
def watching(folder: Path, address: str) -> Iterator[subprocess.Popen[str]]:
    """The script as its unit runs it; `systemctl` is a program that writes down its words."""
    stand_in = folder / "systemctl"
    stand_in.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{folder}/stopped\n')
    stand_in.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "SPOT_METADATA": address, "SPOT_SECONDS": "0.05"}
    command = [sys.executable, str(SCRIPT), *UNITS]
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_units_are_stopped_when_the_notice_comes_and_not_before(metadata: Metadata, tmp_path: Path) -> None:
    with watching(tmp_path, f"http://127.0.0.1:{metadata.server_port}") as process:
        wait_until(lambda: metadata.asked >= 3, otherwise="nobody asks for the notice")
        assert process.poll() is None
        assert not (tmp_path / "stopped").exists()
        metadata.status = 200
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert (tmp_path / "stopped").read_text().splitlines() == ["stop", *UNITS]
    assert said == f"this machine will be taken away ({NOTICE.decode()}): stopping {' '.join(UNITS)}\n"


def test_a_service_that_fails_for_a_while_is_named_once_and_asked_again(metadata: Metadata, tmp_path: Path) -> None:
    metadata.status = 500
    with watching(tmp_path, f"http://127.0.0.1:{metadata.server_port}") as process:
        wait_until(lambda: metadata.asked >= 3, otherwise="nobody asks for the notice")
        metadata.status = 200
        _, said = process.communicate(timeout=60)
    first, last = said.splitlines()
    assert first.endswith("does not answer: HTTP Error 500: Internal Server Error; asking again")
    assert last.startswith("this machine will be taken away")
