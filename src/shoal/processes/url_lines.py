"""Lines of URLs from files and from standard input, in flat memory whatever is in them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import BinaryIO, Final, TextIO

from shoal.errors import UsageError

LONGEST_LINE: Final = 1 << 20
MARK: Final = b"\xef\xbb\xbf"  # editors of Windows begin a file with it
GROUP: Final = 65_536
ARRIVING_CHUNKS = 4
# How files begin that are no text in UTF-8, what they are, and what makes it of them.
_KINDS: Final = (
    (b"\x1f\x8b", "compressed by gzip", "zcat"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "zstdcat"),
    (b"\xfd7zXZ", "compressed by xz", "xzcat"),
    (b"BZh", "compressed by bzip2", "bzcat"),
    (b"PK\x03\x04", "a zip archive", "unzip -p"),
    (b"\xff\xfe", "UTF-16", "iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "UTF-16", "iconv -f UTF-16 -t UTF-8"),
)


def other_format(beginning: bytes) -> str:
    """Why this is no text in UTF-8, and what makes one of it; empty: nothing says so."""
    for start, kind, tool in _KINDS:
        if beginning.startswith(start):
            return f"it is {kind}, and no text in UTF-8: `{tool}` makes one of it"
    return ""


def open_lines(path: str, *, name: str) -> BinaryIO:
    """A file of lines. Refuses one that cannot be read, or is no text; `name` is what people know it by."""
    try:
        file = open(path, "rb")  # noqa: SIM115 -- a path as it was given; its reader closes it
        refusal = other_format(beginning_of(file))
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from None
    if refusal:
        file.close()
        raise UsageError(f"{name} cannot be read: {refusal}")
    return file


def beginning_of(file: BinaryIO) -> bytes:
    """The first bytes of a file that is read from its beginning."""
    return file.peek(8)[:8]  # type: ignore[attr-defined, no-any-return]  # a buffered reader


def lines_in(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file from where it is read; of one that is far too long, its beginning."""
    is_first = file.tell() == 0
    while line := file.readline(LONGEST_LINE):
        rest = line
        while len(rest) == LONGEST_LINE and not rest.endswith(b"\n"):
            rest = file.readline(LONGEST_LINE)
        yield line.removeprefix(MARK) if is_first else line
        is_first = False


def texts_in(file: BinaryIO) -> Iterator[str]:
    """The lines of a file as texts."""
    return (line.decode("utf-8", "replace") for line in lines_in(file))


def in_groups(lines: Iterator[str]) -> Iterator[list[str]]:
    """The lines in groups of not many more characters than `GROUP`."""
    group, size = list[str](), 0
    for line in lines:
        group.append(line)
        size += len(line)
        if size >= GROUP:
            yield group
            group, size = [], 0
    if group:
        yield group


async def arriving(stream: TextIO) -> AsyncIterator[list[str]]:
    """The lines of a stream as they arrive, in groups. The writer at the other end may be slow."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[bytes] = asyncio.Queue(ARRIVING_CHUNKS)

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            while chunk := stream.buffer.read1(GROUP):  # type: ignore[attr-defined]  # a buffered reader
                asyncio.run_coroutine_threadsafe(arrived.put(chunk), loop).result()
            asyncio.run_coroutine_threadsafe(arrived.put(b""), loop).result()

    # A daemon: a read that waits for input must not keep the process from ending.
    threading.Thread(target=read, name="stdin", daemon=True).start()
    rest, is_first = b"", True
    while chunk := await arrived.get():
        if is_first and (refusal := other_format(chunk)):
            raise UsageError(f"standard input cannot be read: {refusal}")
        *lines, rest = (rest + (chunk.removeprefix(MARK) if is_first else chunk)).split(b"\n")
        # Of a line without an end the beginning is kept, which says that it is too long.
        rest, is_first = rest[:LONGEST_LINE], False
        yield [line.decode("utf-8", "replace") for line in lines]
    yield [rest.decode("utf-8", "replace")]
