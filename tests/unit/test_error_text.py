"""Where an error came from, in the words of the spider's owner."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.text.errors import code_line_of, kind_of

SPIDER = """
from {helper} import fail

def parse():
    fail()

def wrapped():
    try:
        fail()
    except ValueError as error:
        stop = RuntimeError("stopped")
        stop.__traceback__ = None
        stop.__cause__ = error
        return stop

def own():
    return int("x")
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Gives a spider's module that calls a helper in a file of this name."""

    def load_module(helper: str) -> Any:
        path = tmp_path / helper
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def fail():\n    raise ValueError('no price')\n")
        monkeypatch.syspath_prepend(str(path.parent))
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
        file = tmp_path / "books.py"
        file.write_text(SPIDER.format(helper=path.stem))
        names: dict[str, Any] = {"__file__": str(file)}
        exec(compile(file.read_text(), str(file), "exec"), names)
        return names

    return load_module


def raised(call: Callable[[], Any]) -> Exception:
    try:
        returned = call()
    except Exception as error:
        return error
    assert isinstance(returned, Exception)
    return returned


@pytest.mark.parametrize(
    ("helper", "place"),
    [
        ("helping_prices.py", "helping_prices.py:2"),
        ("lib/helping_more.py", "lib/helping_more.py:2"),
        (".venv/lib/site-packages/helping_installed.py", "books.py:5"),
    ],
)
def test_the_place_is_the_innermost_line_of_the_spiders_own_code(
    load: Callable[[str], Any], helper: str, place: str
) -> None:
    spider = load(helper)
    assert code_line_of(raised(spider["parse"]), files={spider["__file__"]}) == place


def test_an_error_that_wraps_another_has_the_code_line_of_that_one(load: Callable[[str], Any]) -> None:
    spider = load(".venv/lib/site-packages/helping_installed.py")
    assert code_line_of(raised(spider["wrapped"]), files={spider["__file__"]}) == "books.py:9"


def test_an_error_without_a_line_of_the_spider_has_no_place(load: Callable[[str], Any]) -> None:
    spider = load("helping_prices.py")
    error = raised(spider["own"])
    assert (kind_of(error), code_line_of(error, files={spider["__file__"]})) == ("ValueError", "books.py:17")
    assert code_line_of(error, files={"/elsewhere/other.py"}) == ""
    assert code_line_of(error, files=()) == ""
