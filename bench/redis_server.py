"""redis-server from Debian's packages, as a private server on loopback for one benchmark, append-only file on."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

START_SECONDS = 20.0
LOAD_SECONDS = 300.0  # with a dump of millions of URLs


class RedisServer:
    """A running server: its address and what it says about itself."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"redis://127.0.0.1:{port}/0"
        self._client = Redis(port=port, protocol=2, socket_timeout=60.0, driver_info=None)

    def info(self, section: str) -> dict[str, Any]:
        found: dict[str, Any] = self._client.info(section)
        return found

    @property
    def version(self) -> str:
        return str(self.info("server")["redis_version"])

    @property
    def used_bytes(self) -> int:
        """Memory of the data, without what the connections and the append-only file's buffers take."""
        memory = self.info("memory")
        return int(memory["used_memory"]) - int(memory["mem_clients_normal"]) - int(memory["mem_aof_buffer"])

    @property
    def cpu_seconds(self) -> float:
        cpu = self.info("cpu")
        return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])

    def call(self, *command: str | int) -> Any:
        """Any command, and its answer."""
        return self._client.execute_command(*command)

    def save(self) -> None:
        """Write the data to dump.rdb in the server's folder, however long it takes: a client with a timeout would give
        up and ask for the same again."""
        with Redis(port=self.port, protocol=2, socket_timeout=None, driver_info=None) as patient:
            patient.save()

    def append_only(self) -> None:
        """Switch the append-only file on and wait until all data is in it."""
        self._client.config_set("appendonly", "yes")
        while self.info("persistence")["aof_rewrite_in_progress"] or self.info("persistence")["aof_rewrite_scheduled"]:
            time.sleep(0.05)

    @property
    def commands(self) -> dict[str, dict[str, Any]]:
        """Calls and microseconds by command, since the last `empty`."""
        return {name.removeprefix("cmdstat_"): stats for name, stats in self.info("commandstats").items()}

    def empty(self) -> None:
        """Make it as empty as after a start: no data, no statistics."""
        self._client.flushall()
        self._client.config_resetstat()

    def is_up(self) -> bool:
        try:
            return bool(self._client.ping())
        except (RedisError, OSError):
            return False

    def close(self) -> None:
        self._client.close()


def find_redis() -> str:
    """The redis-server program; installed with apt-get if it is missing and we are root."""
    path = shutil.which("redis-server")
    if path is None and os.geteuid() == 0 and shutil.which("apt-get"):
        # Run level 1 keeps the package from starting its own server.
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        subprocess.run(["apt-get", "update", "-qq"], check=True, env=environment)
        subprocess.run(["apt-get", "install", "-y", "-qq", "redis-server"], check=True, env=environment)
        path = shutil.which("redis-server")
    if path is None:
        raise SystemExit("redis-server is missing: install it with `sudo apt-get install redis-server`")
    return path


@contextlib.contextmanager
def redis_server(folder: Path, *options: str, dump: Path | None = None) -> Iterator[RedisServer]:
    """A server until the block ends: empty, or with the data of a dump. Its files go into the folder, and the
    append-only file is deleted at the end."""
    program = find_redis()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if dump is not None:
        # With the append-only file on, a server does not read its dump.
        shutil.copy(dump, folder / "dump.rdb")
        options = ("--appendonly", "no", *options)
    port = any_port()
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder.resolve()), "--save", "",
                "--appendonly", "yes", "--appendfsync", "everysec", *options,
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    server = RedisServer(port)
    try:
        seconds = START_SECONDS if dump is None else LOAD_SECONDS
        _wait_until_up(process, server, log=folder / "redis.log", seconds=seconds)
        if dump is not None:
            server.append_only()
        yield server
    finally:
        server.close()
        process.kill()
        process.wait(timeout=START_SECONDS)
        shutil.rmtree(folder / "appendonlydir", ignore_errors=True)


def any_port() -> int:
    """Any free port: unlike the site's, it may differ from run to run."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _wait_until_up(process: subprocess.Popen[bytes], server: RedisServer, *, log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if server.is_up():
            return
        time.sleep(0.02)
    raise SystemExit(f"redis-server did not start: see {log}")
