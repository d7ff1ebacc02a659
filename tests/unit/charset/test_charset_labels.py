from __future__ import annotations

import pytest
from pyreqwest.response import ResponseBuilder

from shoal.urls.charset import LABELS, charset_named

# Bytes that no two charsets read alike, but those that differ in more than their decoder.
TELLTALE = bytes(range(0x20, 0x100)) + b"\x82\x41\x88\x61\xa1\xa1\xa4\xc2\xe0\x80\xee\xfe\x1b$B\x30\x21\x1b(B"


def decoded_by_label(label: str) -> str:
    kind = f'text/plain; charset="{label}"'
    return ResponseBuilder().header("content-type", kind).body_bytes(TELLTALE).build_sync().text()


def test_knows_the_228_labels_of_the_40_charsets_of_the_encoding_standard() -> None:
    assert len(LABELS) == 228
    assert len(set(LABELS.values())) == 40
    assert all(LABELS[name] == name for name in LABELS.values())


@pytest.mark.parametrize("label", sorted(LABELS))
def test_a_label_means_what_the_decoder_of_the_standard_takes_it_for(label: str) -> None:
    assert decoded_by_label(label) == decoded_by_label(LABELS[label])


def test_the_charsets_are_told_apart_by_this() -> None:
    names = set(LABELS.values()) - {"gb18030", "iso-8859-8-i"}
    assert len({decoded_by_label(name) for name in names}) == len(names)


@pytest.mark.parametrize(
    ("label", "charset"),
    [(" UTF8\n", "utf-8"), ("Latin1", "windows-1252"), ("KOI8-RU", "koi8-u"), ("ISO_8859-1:1987", "windows-1252")],
)
def test_case_and_white_space_do_not_matter(label: str, charset: str) -> None:
    assert charset_named(label) == charset


@pytest.mark.parametrize(
    "label",
    [
        "rot13",
        "zlib",
        "utf-7",
        "idna",
        "punycode",
        "cp437",
        "utf-8-sig",
        "utf_8",
        "",
        "\x00",
        "é",
        "x" * 500,
        "utf8\xa0",
    ],
)
def test_no_other_name_is_a_label_whatever_python_knows(label: str) -> None:
    assert charset_named(label) is None
