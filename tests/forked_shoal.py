"""`python -m shoal` as a fork of a process that has loaded it: 0.03 CPU-seconds in place of 0.3.

Each command is a process of its own with its own signals, folder, environment, modules and end, as people have it; it
does not pay for its imports. A test of a process's start itself starts a real one."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

MOST_BYTES: Final = 131_072
# What a Python reads only when it starts: a command with other values of these is started, not forked.
AT_START: Final = ("PYTHON", "LD_", "MALLOC_", "LC_", "LANG", "OPENSSL_", "SSL_", "OTEL_")
# Heavy, and of few commands.
NOT_LOADED: Final = ("shoal.testing", "shoal.__main__", "shoal.scrapy", "shoal.browser", "shoal.pipes.")


_SERVERS: Final[list[subprocess.Popen[bytes]]] = []


class Started(subprocess.Popen[str]):
    """A command that runs; it is killed when its test fails: a plain `Popen` would wait for its end, perhaps for ever.

    Forked where that is the same as a start, unless it has to be `real`."""

    def __init__(self, *arguments: str, real: bool = False, **options: Any) -> None:
        self._arguments = arguments
        self._can_fork = not real and sys.platform == "linux" and "preexec_fn" not in options
        self._channel: socket.socket | None = None
        super().__init__([sys.executable, "-m", "shoal", *arguments], text=True, **options)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, traceback)

    # What follows takes the place of `Popen`'s own methods, from Python 3.11 on the same in all versions.
    def _execute_child(self, *how: Any) -> None:
        names = "args executable preexec_fn close_fds pass_fds cwd env startupinfo creationflags shell"
        names += " p2cread p2cwrite c2pread c2pwrite errread errwrite restore_signals gid gids uid umask new_session"
        given = dict(zip(names.split(), how, strict=False))
        environ = os.environ if given["env"] is None else given["env"]
        if not self._can_fork or not _is_as_started(environ) or given["pass_fds"]:
            super()._execute_child(*how)  # type: ignore[misc]  # not in typeshed
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        what = [list(self._arguments), str(given["cwd"] or Path.cwd()), dict(environ), given["new_session"]]
        pipes = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        files = [place if file == -1 else file for place, file in enumerate(pipes)]
        with theirs:
            socket.send_fds(_server(), [json.dumps(what).encode()], [*files, theirs.fileno()])
        self.pid = int(ours.recv(16))
        self._channel = ours
        self._child_created = True
        self._close_pipe_fds(*how[10:16])  # type: ignore[attr-defined]  # not in typeshed

    def _internal_poll(self, *others: Any, **options: Any) -> int | None:
        return super()._internal_poll(*others, **options) if self._channel is None else self._end(0.0)  # type: ignore[misc]

    def _wait(self, timeout: float | None) -> int | None:
        if self._channel is None:
            return super()._wait(timeout)  # type: ignore[misc, no-any-return]
        if self._end(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def _end(self, timeout: float | None) -> int | None:
        if self.returncode is None and self._channel is not None:
            self._channel.settimeout(timeout)
            with contextlib.suppress(TimeoutError, BlockingIOError):
                self.returncode = int(self._channel.recv(16))
                self._channel.close()
        return self.returncode


def _is_as_started(environ: Mapping[str, str]) -> bool:
    """Whether a fork is the same as a start with this environment."""
    if sum(map(len, environ.values())) > MOST_BYTES // 2:
        return False
    return all(
        environ.get(name) == os.environ.get(name) for name in {*environ, *os.environ} if name.startswith(AT_START)
    )


@cache
def _server() -> socket.socket:
    """The line to the process that has loaded everything; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, str(Path(__file__)), str(theirs.fileno())]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        _SERVERS.append(subprocess.Popen(command, pass_fds=[theirs.fileno()], env=kept, stdin=subprocess.DEVNULL))
    return ours


def end_server() -> None:
    """End the process that has loaded everything."""
    if _SERVERS:
        _server().close()
        _server.cache_clear()
        _SERVERS.pop().wait()


def serve(line: socket.socket) -> None:
    """Fork for every request until the other side has ended."""
    load_everything()
    running: dict[int, tuple[int, socket.socket]] = {}
    waiting = selectors.DefaultSelector()
    waiting.register(line, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.fileobj is line:
                request, files, _, _ = socket.recv_fds(line, MOST_BYTES, 4)
                if not request:
                    return
                pid = os.fork()
                if pid == 0:
                    waiting.close()
                    line.close()
                    for _, other in running.values():
                        other.close()
                    for ended in running:
                        os.close(ended)
                    become(*json.loads(request), files)
                for descriptor in files[:3]:
                    os.close(descriptor)
                channel, end = socket.socket(fileno=files[3]), os.pidfd_open(pid)
                channel.send(str(pid).encode())
                running[end] = (pid, channel)
                waiting.register(end, selectors.EVENT_READ)
            else:
                waiting.unregister(key.fd)
                pid, channel = running.pop(key.fd)
                os.close(key.fd)
                _, status = os.waitpid(pid, 0)
                with channel, contextlib.suppress(BrokenPipeError):
                    channel.send(str(os.waitstatus_to_exitcode(status)).encode())


def load_everything() -> None:
    """Import what commands import when they need it."""
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shoal = importlib.import_module("shoal")
        for module in pkgutil.walk_packages(shoal.__path__, "shoal.", onerror=lambda name: None):
            if not module.name.startswith(NOT_LOADED):
                with contextlib.suppress(ImportError):
                    importlib.import_module(module.name)
        for name in ("uvloop", "asyncio", "redis.asyncio", "psycopg", "rich.live", "rich.table", "zstandard"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    gc.freeze()
    gc.enable()


def become(
    arguments: list[str], folder: str, variables: dict[str, str], is_new_session: bool, files: list[int]
) -> None:
    """Be the command from here on."""
    if is_new_session:
        os.setsid()
    for place, descriptor in enumerate(files[:3]):
        os.dup2(descriptor, place, inheritable=True)
    for descriptor in files:
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    time.tzset()
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = [_text(n) for n in range(3)]
    # As with `python -m`: the folder in which it was started comes first.
    sys.path[0] = folder
    sys.argv = ["shoal", *arguments]
    runpy.run_module("shoal", run_name="__main__", alter_sys=True)


def _text(descriptor: int) -> Any:
    """A standard stream as Python opens it."""
    is_buffered = descriptor == 0 or (descriptor == 1 and not os.isatty(1))
    return open(
        descriptor,
        "r" if descriptor == 0 else "w",
        buffering=-1 if is_buffered else 1,
        encoding="utf-8",
        errors="backslashreplace" if descriptor == 2 else "strict",
        closefd=False,
    )


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
