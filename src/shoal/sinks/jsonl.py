"""Messages as JSON Lines: appended to a file, or on standard output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shoal.errors import ServerUnreachable, UsageError
from shoal.sinks.base import Message
from shoal.sinks.urls import SinkUrl

MOST = 500
TAIL_BYTES = 64 * 1024
_ENCODER = msgspec.json.Encoder()


class FileSink:
    """Appends whole lines and flushes each batch to the disk. The file is opened for each batch: it may be moved away
    at any time."""

    most = MOST

    def __init__(self, url: SinkUrl) -> None:
        self._path = Path(url.path)

    async def check(self) -> None:
        """Refuse a file that cannot be written, without creating it."""
        await asyncio.to_thread(self._check)

    async def deliver(self, messages: Sequence[Message]) -> None:
        """Append the lines."""
        await asyncio.to_thread(self._append, lines_of(messages))

    async def close(self) -> None:
        """Nothing is open."""

    def _check(self) -> None:
        folder = self._path.parent
        if not folder.is_dir():
            raise UsageError(f"the folder of the sink {self._path} is not there: make it, or name another file")
        may = os.access(self._path, os.W_OK) if self._path.exists() else os.access(folder, os.W_OK)
        if self._path.is_dir() or not may:
            raise UsageError(f"the sink {self._path} cannot be written: check its permissions, or name another file")

    def _append(self, text: bytes) -> None:
        try:
            with self._path.open("a+b", buffering=0) as file:
                end = _mended_end(file.fileno())
                try:
                    _write_all(file.fileno(), text)
                    os.fdatasync(file.fileno())
                except OSError:
                    with contextlib.suppress(OSError):
                        os.ftruncate(file.fileno(), end)
                    raise
        except (FileNotFoundError, NotADirectoryError, PermissionError, IsADirectoryError) as error:
            raise UsageError(f"{self._path} cannot be written: {error.strerror}") from None
        except OSError as error:
            raise ServerUnreachable(f"{self._path}: {error.strerror or error}") from None


class StdoutSink:
    """Writes lines to standard output, without Python's buffer."""

    most = MOST

    def __init__(self) -> None:
        # A cancelled call goes on in its thread: the next call must not write into its lines.
        self._lock = threading.Lock()

    async def check(self) -> None:
        """Nothing to check."""

    async def deliver(self, messages: Sequence[Message]) -> None:
        """Write the lines."""
        try:
            # In a thread: a slow reader must not block the event loop.
            await asyncio.to_thread(self._write, lines_of(messages))
        except OSError as error:
            raise UsageError(f"standard output takes no more: {error.strerror or error}") from None

    async def close(self) -> None:
        """Standard output stays open: it belongs to the process."""

    def _write(self, text: bytes) -> None:
        with self._lock:
            _write_all(1, text)


def lines_of(messages: Sequence[Message]) -> bytes:
    """A line for each message, also where an item's JSON has line breaks."""
    lines = _ENCODER.encode_lines(messages)
    if lines.count(b"\n") == len(messages) and b"\r" not in lines:
        return lines
    return b"".join(_on_one_line(_ENCODER.encode(message)) + b"\n" for message in messages)


def _on_one_line(text: bytes) -> bytes:
    return msgspec.json.format(text, indent=-1) if b"\n" in text or b"\r" in text else text


def _mended_end(descriptor: int) -> int:
    """The size of the file after its last line was repaired: a line that a crash tore is cut off (its message is sent
    again), a whole line without a line break gets one."""
    size = os.fstat(descriptor).st_size
    start = max(0, size - 1)
    if size == 0 or os.pread(descriptor, 1, start) == b"\n":
        return size
    tail = b""
    while start and b"\n" not in tail:
        step = min(start, TAIL_BYTES)
        start -= step
        tail = os.pread(descriptor, size - start, start)
    line = os.pread(descriptor, size, 0) if not tail else tail.rpartition(b"\n")[2]
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        os.ftruncate(descriptor, size - len(line))
        return size - len(line)
    _write_all(descriptor, b"\n")
    return size + 1


def _write_all(descriptor: int, text: bytes) -> None:
    left = memoryview(text)
    while left:
        left = left[os.write(descriptor, left) :]
