"""A real redis-server for tests, and a cluster of three; each server can be killed and restarted."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

from shoal.testing.servers.clocks import SteppedClock
from shoal.testing.servers.programs import START_SECONDS, find_program, free_port, wait_for_answer
from shoal.testing.waiting import wait_until

MOST_BYTES_CUT = 4096


class RedisServer:
    """A redis-server with an append-only file. Data stays in the folder between starts.

    With `own_clock` its clock can be stepped by libfaketime, and stays so between starts."""

    def __init__(self, folder: Path, *options: str, own_clock: bool = False) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._options = options
        self.bus_port = int(options[options.index("--cluster-port") + 1]) if "--cluster-port" in options else 0
        self._program = find_program("redis-server")
        self._process: subprocess.Popen[bytes] | None = None
        self._clock = SteppedClock(folder / "clock") if own_clock else None

    @property
    def append_only_file(self) -> Path:
        """The append-only file in use: the one with the highest number."""
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
                env=os.environ | (self._clock.environment if self._clock else {}),
            )  # fmt: skip
        self._wait()
        return self

    def kill(self) -> None:
        """SIGKILL: unwritten data is lost."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM: Redis writes everything and ends. Stopping again is harmless."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: the process is alive but does not answer."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: continue after `pause`."""
        self._send(signal.SIGCONT)

    def step_clock(self, seconds: float) -> None:
        """Set its time of day forward, or back if `seconds` is negative."""
        assert self._clock is not None, "a server with own_clock=True"
        self._clock.step(seconds)

    def wait_for_the_file(self) -> None:
        """Wait until every acknowledged write is in the append-only file."""
        wait_until(lambda: not self.call("INFO", "persistence")["aof_buffer_length"], otherwise="Redis does not flush")

    def lose_tail(self, draw: random.Random, *, safe: tuple[Path, int] | None = None) -> None:
        """Truncate the append-only file at any byte, as a power cut does. `safe`: a file, and the size that it keeps at
        least."""
        path = self.append_only_file
        kept = safe[1] if safe is not None and path == safe[0] else 0
        os.truncate(path, max(kept, path.stat().st_size - draw.randrange(MOST_BYTES_CUT)))

    def call(self, *command: str | int) -> Any:
        """One command, on its own connection."""
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
        try:
            wait_for_answer(self._process, self._answers)
        except RuntimeError as error:
            self.kill()
            log = (self.folder / "redis.log").read_text(errors="replace")
            raise RuntimeError(f"redis-server did not start, {error}:\n{log[-2000:]}") from None

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
        """Start the nodes, assign the slots, and wait until each node sees all of them."""
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
        """Wait until every node reports that all slots are served."""
        wait_until(
            lambda: all(self._is_well(node) for node in self.nodes),
            otherwise="the nodes form no cluster with all slots",
        )

    def node_of(self, key: str) -> RedisServer:
        """The node of this key."""
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
            otherwise="the nodes do not all know the replica",
        )
        replica.call("CLUSTER", "REPLICATE", master.call("CLUSTER", "MYID").decode())
        wait_until(
            lambda: replica.call("INFO", "replication").get("master_link_status") == "up",
            otherwise="the replica does not follow its master",
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
