"""A redis-server of a test's own, and a cluster of them: killed and restarted at will."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from shoal.testing.servers.programs import START_SECONDS, find_program, free_port, wait_until


class RedisServer:
    """A redis-server with an append-only file. Data stays in the folder from one start to the next."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._options = options
        self.bus_port = int(options[options.index("--cluster-port") + 1]) if "--cluster-port" in options else 0
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


class RedisCluster:
    """A Redis Cluster of three masters, each with a third of the slots."""

    NODES, SLOTS = 3, 16384

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._replicas: list[RedisServer] = []
        self.nodes = [self._node(f"node{number}") for number in range(self.NODES)]

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}/"

    def start(self) -> RedisCluster:
        """Start the nodes, share out the slots, and wait until each node sees all of them."""
        step = -(-self.SLOTS // self.NODES)
        for number, node in enumerate(self.nodes):
            node.start()
            node.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.call("CLUSTER", "ADDSLOTSRANGE", number * step, min((number + 1) * step, self.SLOTS) - 1)
        for node in self.nodes[1:]:
            self.nodes[0].call("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus_port)
        try:
            self.wait()
        except BaseException:
            self.kill()
            raise
        return self

    def wait(self) -> None:
        """Until every node says that all slots are served."""
        wait_until(lambda: all(self._is_well(node) for node in self.nodes), "the cluster does not come together")

    def node_of(self, key: str) -> RedisServer:
        """The node that has this key."""
        step = -(-self.SLOTS // self.NODES)
        slot: int = self.nodes[0].call("CLUSTER", "KEYSLOT", key)
        return self.nodes[slot // step]

    def flush(self) -> None:
        for node in self.nodes:
            node.call("FLUSHALL")

    def keys(self) -> set[bytes]:
        """Every key of every node."""
        return {key for node in self.nodes for key in node.call("KEYS", "*")}

    def add_replica(self, master: RedisServer) -> RedisServer:
        """A fourth node that follows one of the masters."""
        replica = self._node("replica").start()
        self._replicas.append(replica)
        master.call("CLUSTER", "MEET", "127.0.0.1", replica.port, replica.bus_port)
        everybody = f"cluster_known_nodes:{self.NODES + 1}"
        wait_until(
            lambda: all(everybody in node.call("CLUSTER", "INFO").decode() for node in (*self.nodes, replica)),
            "the replica does not meet the others",
        )
        replica.call("CLUSTER", "REPLICATE", master.call("CLUSTER", "MYID").decode())
        wait_until(
            lambda: replica.call("INFO", "replication").get("master_link_status") == "up",
            "the replica does not follow its master",
        )
        return replica

    def kill(self) -> None:
        for node in (*self.nodes, *self._replicas):
            node.kill()

    def _node(self, name: str) -> RedisServer:
        bus = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--cluster-node-timeout", "3000")
        return RedisServer(self._folder / name, *bus, "--repl-diskless-sync-delay", "0", *self._options)

    def _is_well(self, node: RedisServer) -> bool:
        state = node.call("CLUSTER", "INFO").decode().split()
        return "cluster_state:ok" in state and f"cluster_known_nodes:{self.NODES}" in state
