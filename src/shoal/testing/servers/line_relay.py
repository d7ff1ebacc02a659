"""A relay on loopback between clients and a real server whose connections can be reset, cut, stalled and garbled."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator

CHUNK_BYTES = 65_536
NOISE = b"\x00\xff noise on the line \xfe\r\n"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class LineRelay:
    """Relays bytes between clients and the server at `port`. Clients connect to `url_port`.

    All methods but `mend` take effect at once, without await."""

    def __init__(self, port: int, *, host: str = "127.0.0.1") -> None:
        self.url_port = 0
        self.accepted = 0
        self._host, self._port = host, port
        self._server: asyncio.Server | None = None
        self._lines: set[_Line] = set()
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._reopening: asyncio.TimerHandle | None = None
        self._bytes_left: int | None = None
        self._most_words: int | None = None
        self._word = b""

    @property
    def lines(self) -> int:
        """The number of open connections."""
        return len(self._lines)

    def reset(self) -> None:
        """Reset every connection on both sides. New ones are accepted."""
        for line in list(self._lines):
            line.reset()

    def hang_up(self) -> None:
        """Close every connection in order, as a server that shuts down, or CLIENT KILL."""
        for line in list(self._lines):
            line.close()

    def cut(self) -> None:
        """Reset every connection and refuse new ones until `mend`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.reset()

    async def mend(self) -> None:
        """Accept connections again, at the same port."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, self._host, self.url_port, reuse_address=True)
            self.url_port = self._server.sockets[0].getsockname()[1]

    def stall(self, seconds: float) -> None:
        """Hold back all bytes in both directions for this long."""
        if self._reopening is not None:
            self._reopening.cancel()
        self._is_open.clear()
        self._reopening = asyncio.get_running_loop().call_later(seconds, self._is_open.set)

    def garble(self) -> None:
        """Send bytes to every client that are not from the server."""
        for line in list(self._lines):
            line.client.write(NOISE)

    def break_off(self, *, after: int = 1) -> None:
        """Close the connection of the next answer after this many of its bytes."""
        self._bytes_left = after

    def close_after(self, times: int | None, word: bytes) -> None:
        """Close every line on which a client sends this word more than so many times, before the next one passes; None:
        no more of this."""
        self._most_words, self._word = times, word

    async def close(self) -> None:
        """Close it. Closing again is harmless."""
        self.cut()
        if self._reopening is not None:
            self._reopening.cancel()
        self._is_open.set()
        await asyncio.gather(*(line.ended.wait() for line in list(self._lines)))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            from_server, server = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        line = _Line(writer, server)
        self._lines.add(line)
        ways = [
            asyncio.ensure_future(self._pass_on(reader, server)),
            asyncio.ensure_future(self._pass_on(from_server, writer, line=line)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            line.close()
            self._lines.discard(line)
            line.ended.set()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, line: _Line | None = None
    ) -> None:
        """One direction, until it ends; `line` is given for answers."""
        words, tail = 0, b""
        # uvloop raises RuntimeError for a line that was closed meanwhile.
        with contextlib.suppress(OSError, RuntimeError):
            while chunk := await reader.read(CHUNK_BYTES):
                await self._is_open.wait()
                if line is None and self._most_words is not None:
                    parts = (tail + chunk).split(self._word)
                    words += len(parts) - 1
                    if words > self._most_words:
                        kept = self._word.join(parts[: len(parts) - (words - self._most_words)])
                        writer.write(kept[len(tail) :])
                        return
                    tail = parts[-1][1 - len(self._word) :]
                if line is not None and self._bytes_left is not None:
                    writer.write(chunk[: self._bytes_left])
                    self._bytes_left = None
                    return
                writer.write(chunk)
                await writer.drain()


class _Line:
    """One client's line: its own half and the half to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client, self.server = client, server
        self.ended = asyncio.Event()

    def reset(self) -> None:
        for half in (self.client, self.server):
            if not half.is_closing():
                half.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                half.transport.abort()

    def close(self) -> None:
        for half in (self.client, self.server):
            half.close()


@contextlib.asynccontextmanager
async def line_relay(port: int, *, host: str = "127.0.0.1") -> AsyncIterator[LineRelay]:
    """A relay to the server at this port, for as long as the block runs."""
    relay = LineRelay(port, host=host)
    await relay.mend()
    try:
        yield relay
    finally:
        await relay.close()
