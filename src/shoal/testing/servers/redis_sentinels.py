"""Real sentinels for tests, with a master and a replica."""

from __future__ import annotations

import subprocess
from pathlib import Path

from shoal.testing.servers.programs import find_program, free_port
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.waiting import wait_until


def start_sentinel(folder: Path, settings: list[str]) -> subprocess.Popen[bytes]:
    """A sentinel with these lines of configuration."""
    folder.mkdir()
    (folder / "sentinel.conf").write_text("\n".join(["bind 127.0.0.1", f"dir {folder}", *settings, ""]))
    with (folder / "sentinel.log").open("wb") as log:
        command = [find_program("redis-server"), str(folder / "sentinel.conf"), "--sentinel"]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


class RedisSentinels:
    """A master, its replica and three sentinels that watch them."""

    def __init__(self, folder: Path) -> None:
        self.master = RedisServer(folder / "master").start()
        replica_of = ("--replicaof", f"127.0.0.1 {self.master.port}", "--repl-diskless-sync-delay", "0")
        self.replica = RedisServer(folder / "replica", *replica_of).start()
        self.ports = [free_port() for _ in range(3)]
        self.processes = [self._sentinel(folder / f"sentinel{port}", port) for port in self.ports]
        self.url = f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in self.ports)}/mymaster/0"

    def _sentinel(self, folder: Path, port: int) -> subprocess.Popen[bytes]:
        return start_sentinel(
            folder,
            [
                f"port {port}",
                f"sentinel monitor mymaster 127.0.0.1 {self.master.port} 2",
                "sentinel down-after-milliseconds mymaster 500",
                "sentinel failover-timeout mymaster 2000",
            ],
        )

    def wait(self) -> None:
        """Wait until the replica follows and every sentinel knows it and the other two sentinels."""
        wait_until(self._is_ready, otherwise="the sentinels do not know each other", pause=0.05)

    def _is_ready(self) -> bool:
        is_linked = self.replica.call("INFO", "replication")["master_link_status"] == "up"
        return is_linked and all(self._knows(port) == (1, 2) for port in self.ports)

    def _knows(self, port: int) -> tuple[int, int]:
        """How many replicas of the master, and other sentinels, this sentinel has found."""
        from redis import Redis
        from redis.exceptions import ConnectionError as NotYet

        with Redis(port=port, protocol=2, driver_info=None) as client:
            try:
                replicas = client.execute_command("SENTINEL", "REPLICAS", "mymaster")
                return len(replicas), len(client.execute_command("SENTINEL", "SENTINELS", "mymaster"))
            except NotYet:
                return 0, 0

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.master.kill()
        self.replica.kill()
