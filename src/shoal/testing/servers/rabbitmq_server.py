"""A real RabbitMQ for tests: it can be killed, restarted, paused, and made to raise its memory alarm."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from shoal.testing.servers.programs import START_SECONDS, find_program, free_port, missing, wait_for_answer
from shoal.testing.waiting import wait_until

# Debian's command runs the server as another user, in shared folders.
_PROGRAMS = "/usr/lib/rabbitmq/bin"


class RabbitServer:
    """One node with its own data, log, cookie and port mapper, so that nodes do not find each other. Data stays in the
    folder between starts. With a `certificate`, a PEM file with its key, it also listens with TLS."""

    def __init__(self, folder: Path, *, certificate: Path | None = None) -> None:
        self.folder = folder
        self.port = free_port()
        self.secure_port = free_port() if certificate is not None else 0
        self._certificate = certificate
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/"
        self._program = _program("rabbitmq-server")
        self._mapper_program = find_program("epmd")
        self._mapper: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._mapper_port, self._node_port = free_port(), free_port()

    def start(self) -> RabbitServer:
        """Start it and wait until it answers: some five seconds."""
        for name in ("data", "log"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "rabbitmq.conf").write_text(
            "log.console = true\nlog.file = false\nlog.console.level = warning\nloopback_users = none\n"
            "disk_free_limit.absolute = 1MB\n" + self._secure_lines()
        )
        environ = self._environ()
        if self._mapper is None:
            command = [self._mapper_program, "-address", "127.0.0.1"]
            self._mapper = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        with (self.folder / "rabbitmq.log").open("ab") as log:
            # A session of its own: the server is several processes, which get signals together.
            self._process = subprocess.Popen(
                [self._program], env=environ, cwd=self.folder, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            wait_for_answer(self._process, self._answers)
        except RuntimeError as error:
            self.remove()
            text = (self.folder / "rabbitmq.log").read_text(errors="replace")
            raise RuntimeError(f"rabbitmq-server did not start, {error}:\n{text[-2000:]}") from None
        return self

    def at(self, prefix: str, *, port: int | None = None) -> str:
        """The URL of a pipe in it; `port` may be a relay in front of it."""
        return f"amqp://guest:guest@127.0.0.1:{port or self.port}/?prefix={prefix}"

    def kill(self) -> None:
        """SIGKILL: unwritten data is lost."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM: stop in order."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        self.kill()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: the processes are alive but do not answer."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: continue after `pause`."""
        self._send(signal.SIGCONT)

    def remove(self) -> None:
        """Stop it and its port mapper for good."""
        self.kill()
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait(START_SECONDS)
            self._mapper = None

    def wait_for_the_disk(self, queue: str) -> None:
        """Wait until this quorum queue is on disk. RabbitMQ 3 takes seconds for that; killed before, it has a queue
        that does not answer."""
        (noted,) = self.folder.glob("data/*/quorum/*/names.dets")
        wait_until(lambda: queue.encode() in noted.read_bytes(), otherwise=f"{queue} is not noted on the disk")

    def raise_alarm(self) -> None:
        """Raise the memory alarm: no client may send."""
        self.control("set_vm_memory_high_watermark", "0")

    def end_alarm(self) -> None:
        self.control("set_vm_memory_high_watermark", "0.6")

    def control(self, *arguments: str) -> str:
        """The output of `rabbitmqctl`."""
        command = [_program("rabbitmqctl"), "--quiet", *arguments]
        ran = subprocess.run(command, env=self._environ(), capture_output=True, text=True, timeout=START_SECONDS)
        assert ran.returncode == 0, f"{arguments}: {ran.stdout}{ran.stderr}"
        return ran.stdout

    def _secure_lines(self) -> str:
        if self._certificate is None:
            return ""
        return (
            f"listeners.ssl.default = 127.0.0.1:{self.secure_port}\nssl_options.verify = verify_none\n"
            f"ssl_options.certfile = {self._certificate}\nssl_options.keyfile = {self._certificate}\n"
        )

    def _environ(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"shoal-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
        }

    def _end(self, sign: signal.Signals) -> None:
        if self._process is not None:
            self._send(sign)
            self._process.wait(START_SECONDS)
            self._process = None

    def _send(self, sign: signal.Signals) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, sign)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.settimeout(5.0)
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return bool(connection.recv(16))
        except OSError:
            return False


def _program(name: str) -> str:
    return shutil.which(name, path=_PROGRAMS) or missing("rabbitmq-server")
