"""The checks of `python -m checks` find what they are for, and accept what is right."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from checks.cycles import import_cycles
from checks.finding import ROOT
from checks.lengths import LONGEST, long_functions
from checks.markup import unsafe_page_code
from checks.module_names import twin_modules
from checks.words import documents, glossary_rules, printed_texts, wrong_words

GLOSSARY = """# Architecture

## Glossary

| word | meaning | not |
|---|---|---|
| crawl | one run of a spider | "job", "jobs" |
| task | one URL to fetch | "job" |
| reclaim | end the leases of exited workers | "take back" |
| item | one result | |
"""


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


def test_a_function_longer_than_a_screen_is_found(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    body = "    pass\n" * (LONGEST - 1)
    path.write_text(
        f"def fits():\n{body}\n\nclass Thing:\n    async def grows():\n{body.replace('    ', '        ')}        pass\n"
    )
    found = list(long_functions([path]))
    assert [finding.text for finding in found] == [f"grows has {LONGEST + 1} lines: split it, {LONGEST} are the most"]
    assert path.read_text().splitlines()[found[0].line - 1].strip() == "async def grows():"


def test_twin_names_are_found_except_between_backends(tmp_path: Path) -> None:
    names = ["frontier/redis/lease.py", "frontier/sqlite/lease.py", "frontier/base.py", "store/base.py"]
    found = list(twin_modules(package(tmp_path / "fine", dict.fromkeys(names, ""))))
    assert found == []
    found = list(twin_modules(package(tmp_path / "twins", dict.fromkeys([*names, "exits/lease.py"], ""))))
    assert [finding.path.relative_to(tmp_path / "twins").as_posix() for finding in found] == ["exits/lease.py"]
    assert "named like frontier/redis/lease.py" in found[0].text


def test_words_that_the_glossary_rules_out_are_found_in_documents(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\nThe jobless start of a nonjob.\nWorkers take\nback leases.\n\n```text\nJob 3 ended\n```\n",
        encoding="utf-8",
    )
    found = list(wrong_words(glossary_rules(GLOSSARY), documents([page])))
    assert {(finding.line, finding.text) for finding in found} == {
        (4, '"take back" is not the glossary\'s word: write "reclaim"'),
        (8, '"Job" is not the glossary\'s word: write "crawl" or "task"'),
    }


def test_words_are_looked_for_in_what_commands_print_and_not_in_names(tmp_path: Path) -> None:
    module = tmp_path / "command.py"
    module.write_text(
        '"""About a job."""\n\n\n@command\ndef show(job):\n    """List the jobs."""\n    echo(f"{job} is a job")\n\n\n'
        'def _inner():\n    """A job, for developers."""\n',
        encoding="utf-8",
    )
    found = list(wrong_words(glossary_rules(GLOSSARY), printed_texts([module])))
    assert sorted(finding.line for finding in found) == [6, 7]


def test_an_exception_excuses_its_own_words_in_its_own_file(tmp_path: Path) -> None:
    for name in ("one.md", "two.md"):
        (tmp_path / name).write_text("a cron job, a job\n", encoding="utf-8")
    texts = documents([tmp_path / "one.md", tmp_path / "two.md"])
    found = wrong_words(glossary_rules(GLOSSARY), texts, {("one.md", "cron job"): "cron's own word"})
    assert sorted(finding.path.name for finding in found) == ["one.md", "two.md", "two.md"]


def test_a_page_of_foreign_words_may_name_them_in_the_first_column_of_its_tables_only(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "explanation" / "words.md"
    page.parent.mkdir(parents=True)
    page.write_text("a job\n\n| word | here |\n|---|---|\n| job | a task |\n| task | a job |\n", encoding="utf-8")
    assert [finding.line for finding in wrong_words(glossary_rules(GLOSSARY), documents([page]))] == [1, 6]
    (tmp_path / "other.md").write_text("| job | a task |\n", encoding="utf-8")
    assert list(wrong_words(glossary_rules(GLOSSARY), documents([tmp_path / "other.md"])))


def test_a_glossary_without_its_table_is_an_error() -> None:
    with pytest.raises(SystemExit, match="the columns word, meaning, not"):
        glossary_rules(GLOSSARY.replace("| not |", "| never |"))


def test_our_own_glossary_rules_something_out() -> None:
    rules = glossary_rules((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert any(rule.pattern.search("a way out") for rule in rules)


def test_make_check_runs_the_checks() -> None:
    plan = subprocess.run(["make", "-n", "check"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    assert "python -m checks" in plan.stdout


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
