"""Decompresses bodies (Content-Encoding) within limits, against decompression bombs."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import brotli
import zstandard

from shoal.fetch.base import Fault, FaultKind

MIB: Final = 1024 * 1024
FREE_BYTES: Final = MIB
MAX_LAYERS: Final = 3
MAX_CODINGS_LENGTH: Final = 200
MAX_MEMBERS: Final = 1024
_SLICE: Final = 64 * 1024
_ZSTD_WINDOW: Final = 8 * MIB  # the most that RFC 9659 allows
# A frame appended to the body: zstandard does not report a truncated body, but then this frame is missing.
_ZSTD_END: Final = b"\x00end\x00"
_ZSTD_END_FRAME: Final = b"(\xb5/\xfd$\x05)\x00\x00\x00end\x00<\xf5\xa9?"

Undo = Callable[[bytes, int], bytes]

# Values that real sites send instead of a coding, with uncompressed bodies.
_NO_CODING: Final = frozenset({"", "identity", "none", "null", "binary", "8bit", "7bit", "text", "utf-8", "utf8"})


class _Overflow(Exception):  # noqa: N818 -- a signal inside this module, not an error
    pass


class _Truncated(Exception):  # noqa: N818 -- a signal inside this module, not an error
    pass


class _Undecodable(Exception):  # noqa: N818 -- a signal inside this module, not an error
    pass


def decompress(body: bytes, content_encoding: str, *, max_bytes: int, max_ratio: int) -> bytes | Fault:
    """The decompressed body, or the fault.

    The ratio counts only above 1 MiB of output: small pages of one repeated line compress very well."""
    if len(content_encoding) > MAX_CODINGS_LENGTH:
        # Refused, not cut: a body with only some layers undone could pass for the page.
        return Fault(kind=FaultKind.BAD_ENCODING, message=f"Content-Encoding of {len(content_encoding):,} characters")
    layers = _layers(content_encoding)
    if isinstance(layers, Fault):
        return layers
    by_ratio = max(FREE_BYTES, max_ratio * len(body))
    limit = min(max_bytes, by_ratio)
    try:
        for undo in layers if body else ():
            body = undo(body, limit)
    except _Overflow:
        if limit < max_bytes:
            return Fault(kind=FaultKind.BOMB, message=f"grows more than {max_ratio} times by decompression")
        return too_large(max_bytes)
    except _Truncated:
        return Fault(kind=FaultKind.TRUNCATED, message="the compressed body ends early")
    except _Undecodable:
        return Fault(kind=FaultKind.BAD_ENCODING, message=f"the body is not {content_encoding[:40]}")
    return body if len(body) <= max_bytes else too_large(max_bytes)


def too_large(max_bytes: int) -> Fault:
    """The fault of a body above `max_body_bytes`."""
    return Fault(kind=FaultKind.TOO_LARGE, message=f"more than {max_bytes:,} bytes")


@lru_cache(maxsize=256)
def _layers(content_encoding: str) -> tuple[Undo, ...] | Fault:
    """The function that undoes each coding; the last coding applied is undone first."""
    undoing: list[Undo] = []
    names = content_encoding.lower().split(",")
    for name in reversed([name.strip() for name in names]):
        if name in _NO_CODING:
            continue
        undo = _undo(name)
        if undo is None:
            return Fault(kind=FaultKind.BAD_ENCODING, message=f"unknown Content-Encoding {name[:40]!r}")
        undoing.append(undo)
    if len(undoing) > MAX_LAYERS:
        return Fault(kind=FaultKind.BAD_ENCODING, message=f"more than {MAX_LAYERS} layers of Content-Encoding")
    return tuple(undoing)


def _undo(name: str) -> Undo | None:
    match name:
        case "gzip" | "x-gzip":
            return _gunzip
        case "deflate" | "x-deflate":
            return _undeflate
        case "br":
            return _unbrotli
        case "zstd":
            return _unzstd
    return None


def _gunzip(body: bytes, limit: int) -> bytes:
    output: list[bytes] = []
    position = size = 0
    for _ in range(MAX_MEMBERS):
        pieces, position, size = _inflate(body, zlib.MAX_WBITS | 16, limit, position=position, size=size)
        output += pieces
        # Other bytes after a whole member are padding; browsers ignore it, too.
        if body[position : position + 2] != b"\x1f\x8b":
            return output[0] if len(output) == 1 else b"".join(output)
    raise _Undecodable


def _undeflate(body: bytes, limit: int) -> bytes:
    try:
        return b"".join(_inflate(body, zlib.MAX_WBITS, limit)[0])
    except _Undecodable:
        # Some servers send raw deflate without the zlib wrapper.
        return b"".join(_inflate(body, -zlib.MAX_WBITS, limit)[0])


def _inflate(body: bytes, wbits: int, limit: int, *, position: int = 0, size: int = 0) -> tuple[list[bytes], int, int]:
    """Decompress one stream from `position`: its pieces, its end, and the size of all output so far."""
    stream = zlib.decompressobj(wbits)
    view = memoryview(body)
    pieces: list[bytes] = []
    while not stream.eof:
        # In slices, because each call copies the rest of its input: many tiny members would take quadratic time.
        given = view[position : position + _SLICE]
        if not given:
            raise _Truncated
        try:
            piece = stream.decompress(given, limit + 1 - size)
        except zlib.error:
            raise _Undecodable from None
        position += len(given) - len(stream.unconsumed_tail) - len(stream.unused_data)
        size += len(piece)
        if size > limit:
            raise _Overflow
        pieces.append(piece)
    return pieces, position, size


def _unbrotli(body: bytes, limit: int) -> bytes:
    stream = brotli.Decompressor()
    output: list[bytes] = []
    size = 0
    while not stream.is_finished():
        try:
            piece = stream.process(b"" if output else body, output_buffer_limit=min(MIB, limit + 1 - size))
        except brotli.error:
            raise _Undecodable from None
        size += len(piece)
        if size > limit:
            raise _Overflow
        output.append(piece)
        if stream.can_accept_more_data() and not stream.is_finished():
            raise _Truncated
    return output[0] if len(output) == 1 else b"".join(output)


def _unzstd(body: bytes, limit: int) -> bytes:
    stream = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    room = limit + len(_ZSTD_END) + 1
    output: list[bytes] = []
    with stream.stream_reader(body + _ZSTD_END_FRAME, read_across_frames=True) as reader:
        try:
            while room and (piece := reader.read(min(room, MIB))):
                output.append(piece)
                room -= len(piece)
        except zstandard.ZstdError:
            raise _Undecodable from None
    if not room:
        raise _Overflow
    whole = b"".join(output)
    if not whole.endswith(_ZSTD_END):
        raise _Truncated
    return whole[: -len(_ZSTD_END)]
