"""Real servers for tests: started on a free loopback port in a folder of their own, killed and restarted at will."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import MappingProxyType
from typing import Any

START_SECONDS = 20.0


def find_program(name: str) -> str:
    """The path of an installed server. A missing one skips the test on a laptop and fails it where CI is set."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if path is None:
        import pytest  # here alone: `shoal chaos` starts servers too, without a test around it

        if os.environ.get("CI"):
            pytest.fail(f"{name} is not installed: apt-get install {name}")
        pytest.skip(f"{name} is not installed")
    return path


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """A redis-server with an append-only file. Data stays in the folder from one start to the next."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._options = options
        self._program = find_program("redis-server")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def append_only_file(self) -> Path:
        """The file that grows with every write: the last of them."""
        files = (self.folder / "appendonlydir").glob("*.incr.aof")
        return max(files, key=lambda path: int(path.name.split(".")[-3]))

    def start(self) -> RedisServer:
        """Start it and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder),
                    "--appendonly", "yes", "--save", "", *self._options,
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self._wait()
        return self

    def kill(self) -> None:
        """SIGKILL: whatever was not written is lost."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM: it writes everything and goes. Harmless when it is gone already."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """It lives and does not answer."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def wait_for_the_file(self) -> None:
        """Until all that was answered is in the append-only file."""
        while self.call("INFO", "persistence")["aof_buffer_length"]:
            time.sleep(0.01)

    def call(self, *command: str | int) -> Any:
        """One command, on a connection of its own."""
        from redis import Redis

        with Redis(port=self.port, protocol=2, socket_timeout=START_SECONDS, driver_info=None) as client:
            return client.execute_command(*command)

    def _end(self, sign: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(sign)
            self._process.wait(START_SECONDS)
            self._process = None

    def _send(self, sign: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(sign)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                break
            if self._answers():
                return
            time.sleep(0.01)
        self.kill()
        log = (self.folder / "redis.log").read_text(errors="replace")
        raise RuntimeError(f"redis-server did not start:\n{log[-2000:]}")

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


class MotoServer:
    """Object storage that speaks S3, in a process of its own. It forgets everything when it ends."""

    ENVIRONMENT = MappingProxyType({"AWS_ACCESS_KEY_ID": "shoal", "AWS_SECRET_ACCESS_KEY": "for-moto-alone"})

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> MotoServer:
        """Start it and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "moto.log").open("wb") as log:
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._answers():
                return self
            time.sleep(0.02)
        self.kill()
        log_text = (self.folder / "moto.log").read_text(errors="replace")
        raise RuntimeError(f"moto's server did not start:\n{log_text[-2000:]}")

    def make_bucket(self, name: str) -> None:
        self._ask(name, "PUT")

    def drop_bucket(self, name: str) -> None:
        """It must be empty."""
        self._ask(name, "DELETE")

    def url(self, bucket: str, prefix: str = "", *, port: int | None = None) -> str:
        """The URL of an archive there; another port is that of a gate in front of it."""
        return f"s3://{bucket}/{prefix}?endpoint=http://127.0.0.1:{port or self.port}&region=us-east-1"

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_SECONDS)
            self._process = None

    def _ask(self, path: str, method: str) -> None:
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{path}", method=method)).close()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
                return True
        except OSError:
            return False


class Gate:
    """A way to a server on loopback that can be shut: then nobody gets in, and whoever was inside is cut off."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = free_port()
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.StreamWriter] = set()

    async def open(self) -> Gate:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", self.port)
        return self

    async def shut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._passing):
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._passing |= {writer, back}
        try:
            await asyncio.gather(_pump(reader, back), _pump(there, writer), return_exceptions=True)
        finally:
            self._passing -= {writer, back}
            writer.close()
            back.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(65_536):
        writer.write(chunk)
        await writer.drain()
    writer.close()
