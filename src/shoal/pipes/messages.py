"""The messages of a pipe: calls of a frontier and their answers, compressed, in parts of bounded size, versioned."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import msgspec
import zstandard

from shoal.pipes.base import MOST_BYTES

# Raise it when a call or a struct of shoal.model changes so that an older worker or coordinator would misread it.
VERSION: Final = 1
REQUESTS: Final = "requests"  # the queue that the coordinator reads
ANSWERS: Final = "answers"  # prefix of the queues that worker processes read
HELLO: Final = "hello"  # a verb that does nothing: its answer shows that a coordinator is there

# The most bytes of an envelope without its body.
_ENVELOPE_BYTES: Final = 1_000
_PART_BYTES: Final = MOST_BYTES - _ENVELOPE_BYTES
_MOST_OPEN: Final = 256
# Of one call or answer, uncompressed. A page has at most some megabytes of links.
MOST_UNPACKED: Final = 256 * 2**20
_LEVEL: Final = 1
_ENCODER: Final = msgspec.msgpack.Encoder()


class Unreadable(Exception):  # noqa: N818 -- reads as what happened
    """The message is damaged, or not a message of shoal."""


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The first fields of a message, the same in every version. `sender`: of a request the queue for its answer, of an
    answer the coordinator. `number` identifies the request among those of its sender."""

    version: int
    kind: str
    sender: str
    number: int


class Envelope(Head, frozen=True, array_like=True, kw_only=True):
    """One message: a call or an answer, or one of its parts. Encoded by position: new fields go last, with a default.

    `oldest`: the first request whose answer the sender still waits for. `frontier` is the name of the sender's
    frontier; empty: not known yet."""

    crawl: str = ""
    oldest: int = 0
    frontier: str = ""
    part: int = 0
    parts: int = 1
    body: bytes = b""


class Call(msgspec.Struct, frozen=True, array_like=True):
    """The body of a request: a verb of the frontier, and its arguments by name."""

    verb: str
    arguments: msgspec.Raw


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The body of an answer: the result of the verb, or the error that it raised. `told` is when the frontier returned,
    by the coordinator's steady clock."""

    verb: str
    told: float
    error: str = ""
    text: str = ""
    value: msgspec.Raw = msgspec.Raw(b"\xc0")


_HEADS: Final = msgspec.msgpack.Decoder(Head)
_ENVELOPES: Final = msgspec.msgpack.Decoder(Envelope)


def other_version(shown: str, *, worker: int, coordinator: int) -> str:
    """The line about a worker and a coordinator with different versions of messages."""
    older = "worker" if worker < coordinator else "coordinator"
    return (
        f"messages at {shown} have version {worker} from the worker and {coordinator} from the coordinator: upgrade"
        f" shoal on the machine of the {older}"
    )


def encoded(value: object) -> msgspec.Raw:
    """The value as MessagePack."""
    return msgspec.Raw(_ENCODER.encode(value))


def packed(envelope: Envelope, content: Call | Answer) -> list[bytes]:
    """The messages of a call or an answer: one, or several parts of a large one."""
    body = _compressor().compress(_ENCODER.encode(content))
    pieces = [body[at : at + _PART_BYTES] for at in range(0, len(body), _PART_BYTES)]
    return [
        _ENCODER.encode(msgspec.structs.replace(envelope, part=number, parts=len(pieces), body=piece))
        for number, piece in enumerate(pieces)
    ]


def head_of(message: bytes) -> Head:
    """The head of a message, whatever its version."""
    try:
        return _HEADS.decode(message)
    except msgspec.MsgspecError as error:
        raise Unreadable(str(error)) from None


def envelope_of(message: bytes) -> Envelope:
    """The message, which must have this VERSION."""
    try:
        return _ENVELOPES.decode(message)
    except msgspec.MsgspecError as error:
        raise Unreadable(str(error)) from None


class Assembly:
    """Joins the parts of large calls and answers. With too many incomplete ones the oldest is dropped: its sender calls
    again."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], dict[int, bytes]] = {}

    def add(self, envelope: Envelope) -> bytes | None:
        """The body, once all parts are there; else None."""
        if envelope.parts == 1:
            return _unpacked(envelope.body)
        name = (envelope.sender, envelope.number)
        pieces = self._open.setdefault(name, {})
        pieces[envelope.part] = envelope.body
        if len(pieces) < envelope.parts:
            if len(self._open) > _MOST_OPEN:
                del self._open[next(iter(self._open))]
            return None
        del self._open[name]
        return _unpacked(b"".join(pieces[number] for number in _numbers(envelope, pieces)))


def _numbers(envelope: Envelope, pieces: dict[int, bytes]) -> Iterator[int]:
    for number in range(envelope.parts):
        if number not in pieces:
            raise Unreadable(f"part {number} of {envelope.parts} is missing, though there are enough")
        yield number


def _unpacked(body: bytes) -> bytes:
    try:
        size = zstandard.frame_content_size(body)
        if not 0 <= size <= MOST_UNPACKED:
            raise Unreadable(f"it would be {size} bytes long")
        return _decompressor().decompress(body, max_output_size=MOST_UNPACKED)
    except zstandard.ZstdError as error:
        raise Unreadable(str(error)) from None


@lru_cache(maxsize=1)
def _compressor() -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=_LEVEL)


@lru_cache(maxsize=1)
def _decompressor() -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor()
