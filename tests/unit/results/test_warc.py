"""Archived pages as a WARC file, read back by the reader that others use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from warcio.archiveiterator import ArchiveIterator

from shoal.archive.base import RawPage
from shoal.results.warc import WarcFile
from shoal.testing.archive_contract import ODD_HEADERS, ODD_URLS, raw_page


def write(path: Path, pages: list[RawPage]) -> None:
    with path.open("wb") as file:
        warc = WarcFile(file, name=path.name, crawl="books-1", compressed=path.name.endswith(".gz"))
        for page in pages:
            warc.add(page.capture, page.body)


def read(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        return [
            {
                "type": record.rec_type,
                "url": record.rec_headers.get_header("WARC-Target-URI"),
                "date": record.rec_headers.get_header("WARC-Date"),
                "status": record.http_headers and record.http_headers.get_statuscode(),
                "headers": dict(record.http_headers.headers) if record.http_headers else {},
                "body": record.content_stream().read(),
            }
            for record in ArchiveIterator(file, check_digests="raise")
        ]


def check(path: Path) -> None:
    """warcio's own check, as people run it: digests, and that every record can be reached."""
    program = Path(sys.executable).with_name("warcio")
    done = subprocess.run([program, "check", "-v", path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "digest pass" in done.stdout
    subprocess.run([program, "index", path], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("name", ["pages.warc.gz", "pages.warc"])
def test_standard_tools_read_it(tmp_path: Path, name: str) -> None:
    pages = [raw_page(b"<h1>%d</h1>" % number, url=f"https://a.test/{number}", status=200) for number in range(3)]
    pages.append(raw_page(b"", url="https://a.test/none", status=404))
    write(tmp_path / name, pages)
    info, *records = read(tmp_path / name)
    assert info["type"] == "warcinfo"
    assert b"software: shoal/" in info["body"]
    assert [(one["type"], one["url"], one["body"], one["status"]) for one in records] == [
        ("response", page.capture.url, page.body, str(page.capture.status)) for page in pages
    ]
    assert records[0]["date"] == "2023-11-14T22:13:20.250000Z"
    check(tmp_path / name)


def test_headers_that_spoke_of_the_wire_do_not_speak_of_the_body(tmp_path: Path) -> None:
    headers = {"content-encoding": "br", "transfer-encoding": "chunked", "content-length": "7", "set-cookie": "a=b"}
    write(tmp_path / "pages.warc.gz", [raw_page(b"<p>plain</p>", headers=headers)])
    record = read(tmp_path / "pages.warc.gz")[1]
    assert record["body"] == b"<p>plain</p>"
    assert record["headers"] == {
        "x-crawler-content-encoding": "br",
        "x-crawler-transfer-encoding": "chunked",
        "x-crawler-content-length": "7",
        "set-cookie": "a=b",
        "content-length": "12",
    }
    check(tmp_path / "pages.warc.gz")


def test_each_cookie_is_a_header_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "pages.warc", [raw_page(headers={"set-cookie": "a=1; Path=/\nb=2"})])
    text = (tmp_path / "pages.warc").read_text()
    assert "set-cookie: a=1; Path=/\n" in text
    assert "set-cookie: b=2\n" in text


def test_odd_urls_headers_and_statuses_break_no_record(tmp_path: Path) -> None:
    pages = [raw_page(b"\x00\r\n\r\nWARC/1.1\r\n", url=url, headers=ODD_HEADERS, status=299) for url in ODD_URLS]
    pages.append(raw_page(bytes(3_000_000), url="https://a.test/large"))
    write(tmp_path / "pages.warc.gz", pages)
    records = read(tmp_path / "pages.warc.gz")[1:]
    assert [one["body"] for one in records] == [page.body for page in pages]
    check(tmp_path / "pages.warc.gz")


@pytest.mark.parametrize("value", ["caf\xe9", "caf\xc3\xa9", "text/html; name=\xe9"])
def test_headers_keep_the_bytes_that_were_received(tmp_path: Path, value: str) -> None:
    write(tmp_path / "pages.warc", [raw_page(headers={"x-name": value})])
    assert b"\r\nx-name: %s\r\n" % value.encode("latin-1") in (tmp_path / "pages.warc").read_bytes()
    check(tmp_path / "pages.warc")
