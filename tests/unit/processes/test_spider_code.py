"""The code of a spider: which files it is made of, and how two codes differ."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from shoal.crawl.code import MOST_FILES, NO_CODE, SpiderCode, code_of, differences, others
from shoal.crawl.record import CrawlRecord, code_known, record_of
from shoal.model import Crawl, Heartbeat
from shoal.settings.table import Settings
from shoal.spider.loading import load_spider

BOOKS = "import {imported}\nfrom shoal import Spider\n\nclass Books(Spider):\n    start = 'https://a.test/'\n"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if not name.startswith("shoal."):
            del sys.modules[name]


def loaded(folder: Path, *, imported: str = "json", **files: str) -> SpiderCode:
    """The code of a spider with these modules beside it, loaded as a process does."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"books_of_code": BOOKS.format(imported=imported), **files}.items():
        (folder / f"{name}.py").write_text(text)
    load_spider(str(folder / "books_of_code.py"))
    code = code_of(f"{folder}/books_of_code.py:Books")
    for name in ("books_of_code", *files):
        sys.modules.pop(name, None)
    sys.path[:] = [entry for entry in sys.path if entry != str(folder)]
    return code


def test_code_is_the_file_and_what_it_imports_from_its_own_folder(tmp_path: Path) -> None:
    code = loaded(tmp_path, imported="prices_of_code, click", prices_of_code="EURO = 1\n", unused_of_code="")
    assert set(code.files) == {"books_of_code.py", "prices_of_code.py"}


def test_the_same_files_in_another_folder_are_the_same_code(tmp_path: Path) -> None:
    assert loaded(tmp_path / "a") == loaded(tmp_path / "b") != NO_CODE


def test_line_endings_are_no_difference_and_a_comment_is_one(tmp_path: Path) -> None:
    files = {"imported": "prices_of_code", "prices_of_code": "EURO = 1\n"}
    begun = loaded(tmp_path / "a", **files)
    (tmp_path / "b").mkdir()
    other = loaded(tmp_path / "b", **{**files, "prices_of_code": "EURO = 1\r\n"})
    assert (tmp_path / "b" / "prices_of_code.py").read_bytes().endswith(b"\r\n")
    assert differences(begun, other) == ""
    commented = loaded(tmp_path / "c", **{**files, "prices_of_code": "EURO = 1  # still\n"})
    assert differences(begun, commented) == "prices_of_code.py"


def test_files_that_only_one_side_has_are_named_as_such(tmp_path: Path) -> None:
    begun = SpiderCode(digest="1", files={"a.py": "1", "b.py": "1"})
    ours = SpiderCode(digest="2", files={"b.py": "1", "c.py": "1"})
    assert differences(begun, ours) == "a.py (missing) and c.py (more)"


def test_of_many_differences_three_are_named() -> None:
    begun = SpiderCode(digest="1", files={f"{number}.py": "1" for number in range(6)})
    ours = SpiderCode(digest="2", files={f"{number}.py": "2" for number in range(6)})
    assert differences(begun, ours) == "0.py, 1.py, 2.py and 3 other files"


def test_of_a_spider_with_very_many_files_only_the_digest_is_kept(tmp_path: Path) -> None:
    modules = {f"part_{number}_of_code": "" for number in range(MOST_FILES)}
    begun = loaded(tmp_path / "a", imported=", ".join(modules), **modules)
    assert (begun.files, bool(begun.digest)) == ({}, True)
    other = loaded(tmp_path / "b", imported=", ".join(modules), **{**modules, "part_7_of_code": "SEVEN = 7\n"})
    assert differences(begun, other) == "its files"


def test_code_that_is_not_known_differs_from_none() -> None:
    known = SpiderCode(digest="1", files={"a.py": "1"})
    assert (differences(NO_CODE, known), differences(known, NO_CODE)) == ("", "")


def test_a_module_is_told_by_all_loaded_files_of_its_package(tmp_path: Path) -> None:
    def package(root: Path, text: str) -> SpiderCode:
        folder = root / "shop_of_code" / "spiders"
        folder.mkdir(parents=True)
        (folder.parent / "__init__.py").write_text("")
        (folder.parent / "prices.py").write_text(text)
        (folder / "__init__.py").write_text("")
        (folder / "books.py").write_text(BOOKS.format(imported="shop_of_code.prices"))
        sys.path.insert(0, str(root))
        load_spider("shop_of_code.spiders.books:Books")
        code = code_of("shop_of_code.spiders.books:Books")
        sys.path.remove(str(root))
        for name in [name for name in sys.modules if name.startswith("shop_of_code")]:
            del sys.modules[name]
        return code

    begun = package(tmp_path / "a", "EURO = 1\n")
    assert set(begun.files) == {f"shop_of_code/{name}" for name in _PACKAGE}
    assert differences(begun, package(tmp_path / "b", "EURO = 2\n")) == "shop_of_code/prices.py"


_PACKAGE = ("__init__.py", "prices.py", "spiders/__init__.py", "spiders/books.py")


def test_a_spider_of_shoal_itself_has_no_code_of_its_own() -> None:
    assert code_of("shoal.spider.generic:Generic") == NO_CODE


def test_a_crawl_of_a_former_version_remembers_no_code() -> None:
    record = msgspec.to_builtins(CrawlRecord(settings=Settings(), spider="books.py"))
    del record["code"]
    crawl = Crawl(id="books-1", spider="books", settings=record)
    assert code_known(crawl) == NO_CODE
    assert record_of(crawl).spider == "books.py"


def test_workers_that_run_other_code_are_told_from_those_that_do_not_say() -> None:
    beats = [
        Heartbeat(worker=code, crawl="books-1", host="h", pid=1, version="1", slots=8, code=code)
        for code in ("", "1", "2")
    ]
    assert [beat.worker for beat in others(beats, SpiderCode(digest="1"))] == ["2"]
    assert others(beats, NO_CODE) == []
