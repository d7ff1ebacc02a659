"""A site of large pages behind a slow connection: a byte rate for all its responses together."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Final

LINKS: Final = 20
WORDS: Final = 200
BODY_BYTES: Final = 60_000
CHUNK_BYTES: Final = 4_000
LATE_SECONDS: Final = 0.2
START_SECONDS: Final = 60.0
END_SECONDS: Final = 10.0


@contextlib.contextmanager
def narrow_site(*, bytes_per_second: int) -> Iterator[str]:
    """Its URL, until the block ends. Each page links to twenty others, endlessly."""
    found: list[str] = []
    begun, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with _served(_Line(bytes_per_second)) as url:
            found.append(url)
            begun.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    if not begun.wait(START_SECONDS):
        raise RuntimeError("the narrow site did not start")
    try:
        yield found[0]
    finally:
        over.set()
        thread.join(END_SECONDS)


class _Line:
    """Passes one chunk after the other, by the clock: if a chunk is late on a busy machine, the next ones make up for
    it."""

    def __init__(self, bytes_per_second: int) -> None:
        self._seconds = CHUNK_BYTES / bytes_per_second
        self._free_at = 0.0
        self.answering: set[asyncio.Task[None]] = set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.answering.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while request := await reader.readuntil(b"\r\n\r\n"):
                    await self._send(page_for(request.split()[1].decode()), writer)
        finally:
            self.answering.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _send(self, body: bytes, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode())
        for start in range(0, len(body), CHUNK_BYTES):
            await self._turn()
            writer.write(body[start : start + CHUNK_BYTES])
            await writer.drain()

    async def _turn(self) -> None:
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now - LATE_SECONDS) + self._seconds
        await asyncio.sleep(max(0.0, self._free_at - now))


def page_for(path: str) -> bytes:
    """The page at this path; its number in the tree is the digits of the path."""
    number = int("".join(filter(str.isdigit, path)) or 0)
    links = "".join(f'<a href="/{LINKS * number + index}">x</a>' for index in range(1, LINKS + 1))
    # No two pages are equal: equal pages would be taken for a trap.
    text = " ".join(f"{number * factor % 99_991:x}" for factor in range(1, WORDS))
    return f"<html><body>{links}<p>{text}</p>{'x' * BODY_BYTES}".encode()[:BODY_BYTES]


@contextlib.asynccontextmanager
async def _served(line: _Line) -> AsyncIterator[str]:
    server = await asyncio.start_server(line.answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()
        answering = list(line.answering)
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
