"""Object storage for tests: moto's server on a free port, and a gate in front of any server."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import MappingProxyType

from shoal.testing.servers.programs import START_SECONDS, free_port, wait_for_answer


class MotoServer:
    """A process with object storage that speaks S3 and queues that speak SQS. It loses everything when it ends."""

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
        try:
            wait_for_answer(self._process, self._answers)
        except RuntimeError as error:
            self.kill()
            log_text = (self.folder / "moto.log").read_text(errors="replace")
            raise RuntimeError(f"moto's server did not start, {error}:\n{log_text[-2000:]}") from None
        return self

    def make_bucket(self, name: str) -> None:
        self._ask(name, "PUT")

    def drop_bucket(self, name: str) -> None:
        """Delete the bucket, which must be empty."""
        self._ask(name, "DELETE")

    def url(self, bucket: str, prefix: str = "", *, port: int | None = None) -> str:
        """The URL of an archive in it; `port` may be a gate in front of it."""
        return f"s3://{bucket}/{prefix}?endpoint=http://127.0.0.1:{port or self.port}&region=us-east-1"

    def queues_url(self, prefix: str, *, port: int | None = None, redelivery: int = 30) -> str:
        """The URL of a pipe in it; `port` may be a relay in front of it."""
        endpoint = f"http://127.0.0.1:{port or self.port}"
        return f"sqs://{prefix}?region=us-east-1&endpoint={endpoint}&redelivery={redelivery}"

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
    """A port in front of a server on loopback. Closed, it refuses new connections and aborts open ones."""

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
