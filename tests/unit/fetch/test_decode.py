from __future__ import annotations

import time
import tracemalloc
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from shoal.fetch.base import Fault, FaultKind
from shoal.fetch.decode import decompress
from shoal.testing.sites.hostile import gzipped

MIB = 1024 * 1024
PAGE = b"<p>a line of text, not very long</p>\n" * 1000


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


def streamed_zstd(body: bytes) -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(body) + packer.flush()


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzipped,
    "deflate": zlib.compress,
    "br": lambda body: bytes(brotli.compress(body, quality=4)),
    "zstd": zstandard.compress,
}


def unpack(body: bytes, encoding: str, *, max_bytes: int = 10 * MIB, max_ratio: int = 200) -> bytes | Fault:
    return decompress(body, encoding, max_bytes=max_bytes, max_ratio=max_ratio)


def kind(body: bytes, encoding: str, *, max_bytes: int = 10 * MIB, max_ratio: int = 200) -> FaultKind:
    found = unpack(body, encoding, max_bytes=max_bytes, max_ratio=max_ratio)
    assert isinstance(found, Fault), len(found)
    assert found.message
    return found.kind


@pytest.mark.parametrize("encoding", PACK)
@given(body=st.binary(max_size=5000))
def test_gives_back_what_was_packed(encoding: str, body: bytes) -> None:
    assert unpack(PACK[encoding](body), encoding) == body


@pytest.mark.parametrize("encoding", PACK)
@given(body=st.binary(max_size=200))
def test_never_raises_for_what_was_not_packed(encoding: str, body: bytes) -> None:
    assert isinstance(unpack(body, encoding), bytes | Fault)


@pytest.mark.parametrize("encoding", ["", "identity", "Identity", "none", "utf-8", "identity, none", ", ,"])
def test_passes_on_what_is_not_encoded(encoding: str) -> None:
    assert unpack(PAGE, encoding) == PAGE


@pytest.mark.parametrize("encoding", ["GZIP", "x-gzip", " gzip ", "gzip, identity", "identity,gzip"])
def test_knows_the_other_spellings_of_gzip(encoding: str) -> None:
    assert unpack(gzipped(PAGE), encoding) == PAGE


def test_reads_deflate_without_its_wrapper() -> None:
    assert unpack(raw_deflate(PAGE), "deflate") == PAGE


def test_reads_several_gzip_members_and_ignores_padding_behind_them() -> None:
    assert unpack(gzipped(b"one ") + gzipped(b"two") + bytes(512), "gzip") == b"one two"
    assert unpack(gzipped(PAGE) + b"trailing garbage", "gzip") == PAGE


def test_reads_several_zstd_frames_and_frames_of_unknown_size() -> None:
    assert unpack(zstandard.compress(b"one ") + streamed_zstd(b"two"), "zstd") == b"one two"


def test_undoes_layers_from_the_last_to_the_first() -> None:
    packed = zstandard.compress(brotli.compress(gzipped(PAGE)))
    assert unpack(packed, "gzip, br, zstd") == PAGE


@pytest.mark.parametrize("codings", ["identity, " * 1000 + "gzip", "," * 300 + "gzip", ", ".join(["gzip"] * 1000)])
def test_refuses_a_list_of_codings_without_end_instead_of_undoing_a_part_of_it(codings: str) -> None:
    found = decompress(gzipped(b"a page"), codings, max_bytes=1000, max_ratio=10)
    assert isinstance(found, Fault)
    assert found.kind is FaultKind.BAD_ENCODING


def test_refuses_more_than_three_layers() -> None:
    assert kind(gzipped(gzipped(gzipped(gzipped(PAGE)))), "gzip, gzip, gzip, gzip") is FaultKind.BAD_ENCODING


@pytest.mark.parametrize("encoding", PACK)
def test_an_empty_body_is_empty_whatever_its_encoding(encoding: str) -> None:
    assert unpack(b"", encoding) == b""


@pytest.mark.parametrize("encoding", PACK)
def test_a_body_that_is_not_what_it_claims_is_a_bad_encoding(encoding: str) -> None:
    assert kind(PAGE, encoding) is FaultKind.BAD_ENCODING


@pytest.mark.parametrize("encoding", ["lzma", "compress", "gzip, lzma", "🐟", "gzip\x00", "a" * 10_000])
def test_an_unknown_encoding_is_a_bad_encoding(encoding: str) -> None:
    assert kind(PAGE, encoding) is FaultKind.BAD_ENCODING


@pytest.mark.parametrize("encoding", PACK)
@pytest.mark.parametrize("missing", [1, 3, 50])
def test_a_stream_that_ends_early_is_truncated(encoding: str, missing: int) -> None:
    page = b"".join(b"<p>%d</p>" % (number * number) for number in range(1000))
    found = kind(PACK[encoding](page)[:-missing], encoding)
    # zstd cannot always tell a missing end from a wrong one.
    assert found is FaultKind.TRUNCATED or (encoding == "zstd" and found is FaultKind.BAD_ENCODING)


@pytest.mark.parametrize("encoding", PACK)
def test_a_page_above_the_limit_is_too_large(encoding: str) -> None:
    noise = bytes(zlib.crc32(b"%d" % number) & 255 for number in range(100_000))
    packed = PACK[encoding](noise)
    assert unpack(packed, encoding, max_bytes=100_000) == noise
    assert kind(packed, encoding, max_bytes=99_999) is FaultKind.TOO_LARGE


@pytest.mark.parametrize("encoding", PACK)
def test_a_bomb_stops_early_in_little_memory(encoding: str) -> None:
    packed = PACK[encoding](bytes(64 * MIB))
    tracemalloc.start()
    started = time.process_time()
    found = kind(packed, encoding, max_ratio=50)
    seconds, (_, peak) = time.process_time() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found is FaultKind.BOMB
    assert seconds < 2
    assert peak < 24 * MIB


def test_a_bomb_inside_a_layer_is_a_bomb() -> None:
    packed = brotli.compress(gzipped(bytes(64 * MIB)), quality=4)
    assert kind(packed, "gzip, br") is FaultKind.BOMB


@pytest.mark.parametrize("encoding", PACK)
def test_the_ratio_is_judged_only_above_a_mebibyte(encoding: str) -> None:
    assert unpack(PACK[encoding](bytes(MIB)), encoding, max_ratio=2) == bytes(MIB)
    assert kind(PACK[encoding](bytes(MIB + 1)), encoding, max_ratio=2) is FaultKind.BOMB


def test_very_many_gzip_members_cost_little() -> None:
    started = time.process_time()
    assert kind(gzipped(b"") * 500_000, "gzip") is FaultKind.BAD_ENCODING
    assert time.process_time() - started < 2


def test_a_zstd_window_larger_than_the_web_allows_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    assert kind(packer.compress(PAGE) + packer.flush(), "zstd") is FaultKind.BAD_ENCODING
