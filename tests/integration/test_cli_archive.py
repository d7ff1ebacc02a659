"""Raw pages kept by `shoal run --archive`, and `shoal page`, `replay` and `warc` on them, as real processes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from typing import Any
from urllib.request import urlopen

import pytest
from command_line import SECONDS, Folder

from shoal.testing.servers.object_server import MotoServer
from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 60
# Books and listing pages, two moved books, three first editions that are gone.
PAGES = PRODUCTS + 3 + 2 + 3


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory, site: SiteProcess) -> Folder:
    """A crawl whose pages were kept. Tests change nothing in it."""
    folder = Folder(tmp_path_factory.mktemp("crawled"))
    summary = folder.json("run", folder.spider(site.url), "--archive", "pages")
    assert (summary["done"], summary["items"]) == (PAGES, PRODUCTS)
    return folder


def first_page(site: SiteProcess) -> str:
    return f"{site.url}catalogue/page-1.html"


def bytes_of(folder: Folder, *arguments: str) -> bytes:
    command = [sys.executable, "-m", "shoal", *arguments]
    return subprocess.run(command, cwd=folder.path, check=True, capture_output=True, timeout=SECONDS).stdout


def fetched(url: str) -> bytes:
    with urlopen(url) as answer:
        return bytes(answer.read())


def test_a_page_comes_back_as_it_was(crawled: Folder, site: SiteProcess) -> None:
    url = first_page(site)
    assert bytes_of(crawled, "page", url, "--archive", "pages") == fetched(url)
    document = crawled.json("page", url, "--archive", "pages")
    assert (document["url"], document["status"], document["crawl"]) == (url, 200, "books-1")
    assert "content-type    text/html" in crawled.run("page", url, "--archive", "pages", "--headers").stdout
    result = crawled.run("page", url, "--archive", "pages", "-o", "page.html")
    assert result.stdout == ""
    assert (crawled.path / "page.html").read_bytes() == fetched(url)


def test_a_page_is_found_without_the_log_too(crawled: Folder, site: SiteProcess, folder: Folder) -> None:
    url, pages = first_page(site), str(crawled.path / "pages")
    assert bytes_of(folder, "page", url + "?utm_source=x", "--archive", pages) == fetched(url)
    assert list(folder.path.iterdir()) == []
    listed = folder.json("page", url, "--archive", pages, "--list")
    assert [one["url"] for one in listed] == [url]
    assert listed == [folder.json("page", url, "--archive", pages, "--crawl", "books-1")]


def test_a_store_that_is_not_there_is_passed_over_and_not_created(crawled: Folder, site: SiteProcess) -> None:
    url = first_page(site)
    assert bytes_of(crawled, "page", url, "--archive", "pages", "--store", "nowhere.db") == fetched(url)
    assert not (crawled.path / "nowhere.db").exists()


def test_a_page_as_it_was_at_a_time(folder: Folder, site: SiteProcess) -> None:
    name, url = folder.spider(site.url), first_page(site)
    for _ in range(2):
        folder.run("run", name, "--again", "--archive", "pages", "--max-pages", "1")
    first, second = folder.json("page", url, "--archive", "pages", "--list")
    assert (first["crawl"], second["crawl"]) == ("books-1", "books-2")
    assert first["content_hash"] == second["content_hash"]
    assert len(list((folder.path / "pages" / "bodies").rglob("*.zst"))) == 1
    assert folder.json("page", url, "--archive", "pages")["crawl"] == "books-2"
    moment = "2099-01-01T00:00"
    assert folder.json("page", url, "--archive", "pages", "--at", moment)["crawl"] == "books-2"
    assert "is not in the archive" in folder.refusal("page", url, "--archive", "pages", "--at", "1d")
    table = folder.run("page", url, "--archive", "pages", "--list").stdout
    assert [line.split()[2] for line in table.splitlines()[1:]] == ["books-1", "books-2"]


def test_refusals_are_one_line(crawled: Folder, folder: Folder, site: SiteProcess) -> None:
    pages = ["--archive", str(crawled.path / "pages")]
    assert "is not in the archive" in folder.refusal("page", "http://127.0.0.1:1/never", *pages)
    assert "there is no archive in nowhere" in folder.refusal("page", site.url, "--archive", "nowhere")
    assert "there is no archive in" in folder.refusal("page", site.url, "--archive", str(crawled.path))
    name = folder.spider(site.url)
    assert "has no crawl books-9; it has books-1" in folder.refusal("replay", name, *pages, "--crawl", "books-9")
    assert "has no crawl books-9; it has books-1" in folder.refusal("warc", "books-9", *pages, "-o", "x.warc.gz")
    assert "end it in .warc or .warc.gz" in folder.refusal("warc", "books-1", *pages, "-o", "x.zip")
    assert "no archive for ftp://" in folder.refusal("run", name, "--archive", "ftp://h/x")
    assert sorted(path.name for path in folder.path.iterdir()) == ["books.py"]


def test_a_terminal_is_shown_text_and_no_binary(crawled: Folder, folder: Folder, site: SiteProcess) -> None:
    def on_terminal(*arguments: str) -> tuple[int, bytes]:
        ours, theirs = pty.openpty()
        process = folder.start(*arguments, stdout=theirs, stderr=subprocess.PIPE)
        os.close(theirs)
        written = b""
        try:
            while chunk := os.read(ours, 65_536):
                written += chunk
        except OSError:
            pass  # how a terminal says that nobody writes to it any more
        finally:
            os.close(ours)
        _, errors = process.communicate(timeout=SECONDS)
        return process.returncode, written + errors.encode()

    code, written = on_terminal("page", first_page(site), "--archive", str(crawled.path / "pages"))
    assert code == 0
    assert b"<article" in written
    write_page(folder, b"\x00\x01binary\x1b[2J")
    code, written = on_terminal("page", "https://a.test/", "--archive", "pages")
    assert code == 2
    assert b"not text: write it to a file with -o" in written
    assert b"\x1b[2J" not in written


def write_page(folder: Folder, body: bytes) -> None:
    script = (
        "import asyncio\n"
        "from shoal.archive import open_archive\n"
        "from shoal.testing.archive_contract import raw_page\n"
        "async def main():\n"
        f"    await (await open_archive('pages', create=True)).write([raw_page({body!r})])\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=folder.path, check=True, timeout=SECONDS)


def items_of(folder: Folder, name: str = "books.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder.path / name).read_text().splitlines()]


def test_a_changed_spider_replays_without_touching_the_site(crawled: Folder, folder: Folder, site: SiteProcess) -> None:
    before = len(site.hits())
    # The changed spider: what it read as a price it now reads as something else.
    folder.spider(site.url)
    source = folder.path / "books.py"
    source.write_text(source.read_text().replace("price=page.text", 'shouted=page.text("h1").upper(), price=page.text'))
    pages = str(crawled.path / "pages")
    report = folder.json("replay", "books.py", "--archive", pages, "-o", "books.jsonl")
    assert (report["crawl"], report["pages"], report["items"]) == ("books-1", PRODUCTS + 3, PRODUCTS)
    assert (report["skipped"], report["failed"]) == (5, 0)
    items = items_of(folder)
    assert len(items) == PRODUCTS
    assert all(item["shouted"] == item["title"].upper() for item in items)
    assert len(site.hits()) == before


def test_a_replay_replaces_the_items_of_its_crawl_and_a_later_crawl_replaces_those(
    folder: Folder, site: SiteProcess
) -> None:
    name = folder.spider(site.url)
    folder.run("run", name, "--archive", "pages")
    source = folder.path / name
    right = source.read_text()
    source.write_text(right.replace('title=page.text("h1")', 'title="replayed"'))
    text = folder.run("replay", name, "--archive", "pages", "-o", "books.jsonl").stdout
    assert "books-1 replayed" in text
    assert {item["title"] for item in items_of(folder)} == {"replayed"}
    source.write_text(right)
    folder.run("run", name, "--again", "-o", "books.jsonl")
    assert "replayed" not in {item["title"] for item in items_of(folder)}


def test_a_replay_with_failing_pages_names_them_and_exits_with_1(
    crawled: Folder, folder: Folder, site: SiteProcess
) -> None:
    name = folder.spider(site.url, first='if "/000007-" in page.url: raise ValueError("a bad day")')
    result = folder.run("replay", name, "--archive", str(crawled.path / "pages"), code=1)
    assert "failed       1" in result.stdout
    (line,) = [line for line in result.stdout.splitlines() if "handler: " in line]
    assert line.strip().startswith(f"{site.url}product/000007-")
    assert line.endswith(": handler: ValueError: a bad day")
    limited = folder.json("replay", folder.spider(site.url), "--archive", str(crawled.path / "pages"), "--limit", "4")
    assert limited["total"] == 4


def test_a_warc_of_the_crawl_is_read_by_warcio(crawled: Folder, folder: Folder, site: SiteProcess) -> None:
    from warcio.archiveiterator import ArchiveIterator

    folder.run("warc", "books-1", "--archive", str(crawled.path / "pages"), "-o", "books.warc.gz")
    with (folder.path / "books.warc.gz").open("rb") as file:
        pages = {
            record.rec_headers.get_header("WARC-Target-URI"): record.content_stream().read()
            for record in ArchiveIterator(file, check_digests="raise")
            if record.rec_type == "response"
        }
    assert len(pages) == PAGES
    assert pages[first_page(site)] == fetched(first_page(site))
    assert [path.name for path in folder.path.iterdir()] == ["books.warc.gz"]


@pytest.mark.full
def test_several_workers_keep_their_pages_in_a_bucket(folder: Folder, site: SiteProcess, moto: MotoServer) -> None:
    url = moto.url("kept-by-workers", "books")
    name = folder.spider(site.url)
    assert "s3://kept-by-workers/books: there is no such bucket" in folder.refusal("run", name, "--archive", url)
    assert "there is no shoal.db here" in folder.refusal("status")
    moto.make_bucket("kept-by-workers")
    summary = folder.json("run", name, "--workers", "2", "--archive", url)
    assert (summary["done"], summary["items"]) == (PAGES, PRODUCTS)
    assert bytes_of(folder, "page", first_page(site), "--archive", url) == fetched(first_page(site))
    assert folder.json("replay", name, "--archive", url)["items"] == PRODUCTS
