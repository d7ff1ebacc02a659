"""The checks of `python -m checks` find what they are for, and accept what is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.cycles import import_cycles
from checks.finding import ROOT
from checks.markup import unsafe_page_code


def package(folder: Path, modules: dict[str, str]) -> Path:
    """A package with these modules; folders on the way are packages, too."""
    for name, source in modules.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    for inner in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        (inner / "__init__.py").touch()
    return folder


def test_a_cycle_through_an_import_inside_a_function_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {
        "upper.py": "import looped.lower\n",
        "lower.py": "def late():\n    import looped.between\n",
        "between.py": "from looped import upper\n",
        "alone.py": "import looped.upper\n",
    }
    package(tmp_path / "looped", modules)
    monkeypatch.syspath_prepend(tmp_path)
    found = list(import_cycles("looped"))
    assert len(found) == 1
    assert "import cycle looped." in found[0].text
    assert all(f"looped.{name}" in found[0].text for name in ("upper", "lower", "between"))
    assert "alone" not in found[0].text


def test_each_of_two_cycles_is_found_at_its_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {f"{name}.py": f"\nimport paired.{other}\n" for name, other in ("ab", "ba", "cd", "dc")}
    package(tmp_path / "paired", modules)
    monkeypatch.syspath_prepend(tmp_path)
    found = list(import_cycles("paired"))
    assert len(found) == 2
    assert {finding.line for finding in found} == {2}
    assert all(finding.path.parent.name == "paired" and finding.path.exists() for finding in found)


def test_an_import_for_type_checkers_makes_no_cycle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import typed_only.one\n"
    package(tmp_path / "typed_only", {"one.py": "import typed_only.two\n", "two.py": typed})
    monkeypatch.syspath_prepend(tmp_path)
    assert list(import_cycles("typed_only")) == []


def test_make_check_runs_the_checks() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ncheck: ")[2].partition("\n\n")[0]
    assert "python -m checks" in recipe


@pytest.mark.parametrize(
    ("name", "line", "says"),
    [
        ("view.js", "cell.innerHTML = item.title;", "innerHTML lets text become markup"),
        ("view.js", "link.href = row.url;", "belongs into dom.js"),
        ("view.js", 'const made = document.createElement("a");', "belongs into dom.js"),
        ("index.html", "<script>start()</script>", "is inline"),
        ("index.html", '<p style="color: red">', "is inline"),
        ("app.css", "@import url(https://fonts.test/a.css);", "is fetched from elsewhere"),
    ],
)
def test_a_way_for_text_to_become_markup_is_found(tmp_path: Path, name: str, line: str, says: str) -> None:
    (tmp_path / name).write_text(f"\n{line}\n", encoding="utf-8")
    (finding,) = unsafe_page_code(tmp_path)
    assert says in str(finding)
    assert finding.line == 2


def test_code_that_makes_elements_from_text_nodes_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "dom.js").write_text("const made = document.createElement(tag);\n", encoding="utf-8")
    (tmp_path / "view.js").write_text('fill(root, h("p", {}, item.title));\n', encoding="utf-8")
    (tmp_path / "index.html").write_text('<script src="/static/app.js"></script>\n', encoding="utf-8")
    assert list(unsafe_page_code(tmp_path)) == []
