"""Which file a crawl belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from shoal.crawl.code import SpiderSource, is_same_spider, shown_source, source_of


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a/shop.py", "b/shop.py", "other.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()


def belongs(known: str, reference: str, source: SpiderSource | None = None, *, frontier: str = "") -> bool:
    return is_same_spider(known, source or source_of(known, frontier=frontier), reference, frontier=frontier)


@pytest.mark.parametrize(
    ("known", "reference", "same"),
    [
        ("a/shop.py", "a/shop.py", True),
        ("a/shop.py", "./a/../a/shop.py:Shop", True),
        ("a/shop.py", "b/shop.py", False),
        ("a/shop.py", "other.py", False),
        ("shoal.spider.generic:SitePages", "shoal.spider.generic:SitePages", True),
        ("shoal.spider.generic:SitePages", "shoal.cli.demo_spider:Shop", False),
        ("shoal.spider.generic", "a/shop.py", False),
        ("", "a/shop.py", True),
    ],
)
def test_on_one_machine_the_path_tells(known: str, reference: str, same: bool) -> None:
    assert belongs(known, reference) is same


def test_a_file_that_was_moved_is_the_same_spider(tmp_path: Path) -> None:
    source = source_of("a/shop.py")
    (tmp_path / "a/shop.py").unlink()
    assert belongs("a/shop.py", "b/shop.py", source)
    assert not belongs("a/shop.py", "other.py", source)


def test_on_another_machine_the_files_name_tells() -> None:
    source = replace(source_of("a/shop.py"), machine="another", host="another.example")
    assert belongs("a/shop.py", "b/shop.py", source)
    assert not belongs("a/shop.py", "other.py", source)


def test_a_folder_that_was_copied_with_its_frontier_is_the_same_spider() -> None:
    source = source_of("a/shop.py", frontier="a/shoal.db")
    assert belongs("a/shop.py", "b/shop.py", source, frontier="b/shoal.db")
    assert not belongs("a/shop.py", "b/shop.py", source, frontier="a/shoal.db")


def test_a_module_and_its_file_are_the_same_spider() -> None:
    from shoal.spider import generic

    assert belongs("shoal.spider.generic:SitePages", generic.__file__)
    assert belongs(generic.__file__, "shoal.spider.generic:SitePages")


def test_a_crawl_of_a_former_version_belongs_to_files_of_its_name() -> None:
    assert belongs("somewhere/shop.py:Shop", "a/shop.py", SpiderSource())
    assert not belongs("somewhere/shop.py", "other.py", SpiderSource())


def test_a_file_that_is_gone_is_shown_with_the_way_back() -> None:
    source = source_of("a/shop.py")
    assert shown_source("a/shop.py", source) == source.path
    Path("a/shop.py").unlink()
    gone = f"{source.path}, which is not there any more (a file shop.py with its spider resumes it)"
    assert shown_source("a/shop.py", source) == gone
    far = replace(source, machine="another", host="another.example")
    assert shown_source("a/shop.py", far) == source.path
