"""A spider from its file: found, named, and refused in one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.spider.loading import load_spider, made
from shoal.spider.spider import spider_name

BOOKS = "from shoal import Spider\nclass Books(Spider):\n    start = ['https://a.test/']\n"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        # Modules of shoal stay: other tests hold parts of them.
        if not name.startswith("shoal."):
            del sys.modules[name]


def write(folder: Path, text: str, name: str = "books_of_a_test.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_the_only_spider_of_a_file_needs_no_name(tmp_path: Path) -> None:
    spider = load_spider(write(tmp_path, BOOKS))
    assert (spider.__name__, spider_name(spider)) == ("Books", "books")
    spider.name = "my-books"
    assert spider_name(spider) == "my-books"


def test_one_of_several_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, BOOKS + "class Films(Spider): ...\n")
    assert load_spider(f"{path}:Films").__name__ == "Films"
    with pytest.raises(UsageError, match=r"has several spiders: name one, as in .*:Books"):
        load_spider(path)
    with pytest.raises(UsageError, match=r"has no spider 'Songs'; it has: Books, Films"):
        load_spider(f"{path}:Songs")


def test_two_spiders_of_a_file_that_can_run_have_two_names(tmp_path: Path) -> None:
    path = write(tmp_path, BOOKS + "    name = 'shop'\nclass Films(Books):\n    start = ['https://b.test/']\n")
    for reference in (path, f"{path}:Films", f"{path}:Books"):
        with pytest.raises(UsageError, match=r"Books and Films are both named 'shop', .*: give each a name of its own"):
            load_spider(reference)


def test_a_class_to_derive_from_may_give_its_name_on(tmp_path: Path) -> None:
    text = "from shoal import Spider\nclass Shared(Spider):\n    name = 'shop'\n"
    path = write(tmp_path, text + "class Books(Shared):\n    start = ['https://a.test/']\n")
    assert spider_name(load_spider(f"{path}:Books")) == "shop"


def test_a_spider_that_is_only_imported_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, BOOKS, "shared_of_a_test.py")
    path = write(tmp_path, "from shared_of_a_test import Books\nclass Mine(Books): ...\n")
    assert load_spider(path).__name__ == "Mine"


def test_a_files_own_dataclasses_and_neighbours_work(tmp_path: Path) -> None:
    write(tmp_path, "NAME = 'n'\n", "neighbour_of_a_test.py")
    text = (
        "from __future__ import annotations\nimport dataclasses\nfrom neighbour_of_a_test import NAME\n"
        "@dataclasses.dataclass\nclass Row:\n    a: int\n"
    )
    assert load_spider(write(tmp_path, text + BOOKS)).__name__ == "Books"


def test_a_file_with_the_name_of_a_known_module_does_not_take_its_place(tmp_path: Path) -> None:
    import queue

    assert load_spider(write(tmp_path, BOOKS, "queue.py")).__name__ == "Books"
    assert sys.modules["queue"] is queue


def test_a_module_on_the_path(tmp_path: Path) -> None:
    write(tmp_path, BOOKS, "module_of_a_test.py")
    sys.path.insert(0, str(tmp_path))
    assert load_spider("module_of_a_test:Books").__name__ == "Books"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = (", r"cannot be loaded: line 1: '\(' was never closed"),
        ("import shoal\n1 / 0\n", r"cannot be loaded: line 2: ZeroDivisionError: division by zero"),
        ("import no_such_module_at_all\n", r"line 1: ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("import sys\nsys.exit('bye')\n", r"line 2: SystemExit: bye"),
        ("x = 1\n", r"has no spider: write a class that derives from shoal\.Spider"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        load_spider(write(tmp_path, text))


@pytest.mark.parametrize(
    ("reference", "line"),
    [
        ("missing.py", "no spider file missing.py: check the path"),
        ("missing.py:Books", "no spider file missing.py"),
        ("missing_module_of_a_test", "no spider file or module 'missing_module_of_a_test'"),
        ("missing.module.of_a_test", "a file name ends in .py"),
        (":Books", "cannot be loaded"),
    ],
)
def test_a_reference_to_nothing_says_so(reference: str, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        load_spider(reference)


def test_a_module_that_fails_says_what_failed_in_it(tmp_path: Path) -> None:
    write(tmp_path, "import no_such_module_at_all\n", "failing_of_a_test.py")
    sys.path.insert(0, str(tmp_path))
    line = r"'failing_of_a_test' cannot be loaded: .*failing_of_a_test\.py:1: ModuleNotFoundError: No module"
    with pytest.raises(UsageError, match=line):
        load_spider("failing_of_a_test")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "\n\nimport no_such_module_at_all\n",
            r"helper_of_a_test\.py:3 \(from line 2\): ModuleNotFoundError: No module named",
        ),
        ("import json\njson.loads('{')\n", r"helper_of_a_test\.py:2 \(from line 2\): JSONDecodeError: "),
        ("x = 1\ny = (", r"helper_of_a_test\.py:2 \(from line 2\): '\(' was never closed"),
        (
            "from helper_of_a_test import nothing",
            r"helper_of_a_test\.py:1 \(from line 2\): ImportError: cannot import name 'nothing'",
        ),
    ],
)
def test_an_import_that_fails_in_a_helper_names_its_line(tmp_path: Path, text: str, line: str) -> None:
    write(tmp_path, text, "helper_of_a_test.py")
    with pytest.raises(UsageError, match=rf"books_of_a_test\.py cannot be loaded: {line}"):
        load_spider(write(tmp_path, f"import shoal\nimport helper_of_a_test\n{BOOKS}"))


def test_a_file_named_from_its_own_folder_names_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "1 / 0\n", "helper_of_a_test.py")
    write(tmp_path, "import helper_of_a_test\n", "books_of_a_test.py")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UsageError, match=r"^books_of_a_test\.py cannot be loaded: helper_of_a_test\.py:1 \(from line 1\): Zero"
    ):
        load_spider("books_of_a_test.py")


@pytest.mark.parametrize(
    ("method", "line"),
    [
        (
            "def __init__(self, shop, *, depth): ...",
            r"^Books\.__init__ needs shop, depth: give -a shop=… -a depth=…, or give them defaults$",
        ),
        (
            "def __init__(self):\n        self.x = {}['shop']",
            r"^books_of_a_test\.py: Books cannot be made: line 5: KeyError: 'shop'$",
        ),
    ],
)
def test_a_spider_that_cannot_be_made_is_refused_in_one_line(tmp_path: Path, method: str, line: str) -> None:
    spider = load_spider(write(tmp_path, f"{BOOKS}    {method}\n"))
    with pytest.raises(UsageError, match=line):
        made(spider)


def test_a_spider_may_have_parameters_with_defaults(tmp_path: Path) -> None:
    spider = load_spider(write(tmp_path, f"{BOOKS}    def __init__(self, shop='a', *more, **rest): self.shop = shop\n"))
    assert vars(made(spider)) == {"shop": "a"}
