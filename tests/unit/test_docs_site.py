"""The site of the documentation: it builds, and a build with a fault in it is not taken for a good one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import site_pages
from checks.spelling import unknown_words
from shoal.testing.servers.programs import find_program
from site_checks import site_findings

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
SECONDS = 120.0


def findings(folder: Path, body: str) -> list[str]:
    (folder / "index.html").write_text(f'<article id="top">{body}</article>', encoding="utf-8")
    return site_findings(folder)


# Some seconds: the whole site, as `make docs` builds it.
def test_the_site_builds_without_a_finding() -> None:
    command = [sys.executable, "docs/build_site.py"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert result.returncode == 0, result.stderr
    assert (ROOT / ".site" / "html" / "how-to" / "fleet.html").exists()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('<a href="gone.html">x</a>', "leads nowhere"),
        ('<a href="#gone">x</a>', "no such heading"),
        ('<img src="https://cdn.example/a.png">', "from another host"),
        ('<script src="//cdn.example/a.js"></script>', "from another host"),
        ('<link rel="stylesheet" href="https://cdn.example/a.css">', "from another host"),
        ("<style>@import 'https://cdn.example/a.css';</style>", "from another host"),
        ("<p>text\n- an item</p>", "not understood"),
        ("<p>text\n|---|---|</p>", "not understood"),
    ],
)
def test_a_fault_of_a_built_page_is_named(tmp_path: Path, body: str, said: str) -> None:
    found = findings(tmp_path, body)
    assert len(found) == 1
    assert said in found[0]


def test_a_sound_page_has_no_finding(tmp_path: Path) -> None:
    body = '<p>1.5 - 2</p><a href="#top">x</a><a href="https://example.com/">people may follow it</a>'
    assert findings(tmp_path, body) == []


def test_links_are_those_of_the_site() -> None:
    assert "](how-to/return-codes.md)" in site_pages.page("docs/tutorial.md")
    assert "](examples.md)" in site_pages.page("docs/tutorial.md")
    assert "](project/ARCHITECTURE.md)" in site_pages.page("README.md")
    assert 'python title="books.py"' in site_pages.page("README.md")


def test_passwords_of_a_deployment_stay_out_of_the_site(tmp_path: Path) -> None:
    for name in ("compose.yaml", ".env.example", ".env", "secrets/redis_password", "spiders/secrets/token"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x", encoding="utf-8")
    assert site_pages.deployed(tmp_path) == [".env.example", "compose.yaml"]
    assert "deploy/compose.yaml" in site_pages.sources()


def test_a_word_in_no_dictionary_is_found_in_prose_alone(tmp_path: Path) -> None:
    find_program("hunspell")
    page = tmp_path / "page.md"
    page.write_text("A crawl is wonderfull.\n\n```sh\nwonderfull\n```\n\n`wonderfull` and a zset\n", encoding="utf-8")
    found = list(unknown_words([page], frozenset({"zset"})))
    assert [(finding.line, '"wonderfull"' in str(finding)) for finding in found] == [(1, True)]
