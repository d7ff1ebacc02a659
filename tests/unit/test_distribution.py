"""The name at the package index: project, messages, documents and templates say the same, with extras it has."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.settings.table import Settings
from shoal.version import DISTRIBUTION, install_command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
INSTALL = re.compile(r"\bpip install (.+)")
# A requirement with extras, or shoal without: `./shoal`, `/opt/shoal` and `shoal.example` are none.
REQUIREMENT = re.compile(r"(?<![\w./@+-])(?:([A-Za-z][\w-]*)\[([^\]]*)\]|(shoal[\w-]*)(?![\w./]))")
FILLED_IN = "@extras@"  # by `shoal deploy`, whose extras have a test of their own


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name and not name.startswith("tests/")]
    return [path for path in paths if path.is_file()]


def wrong_installs(text: str) -> Iterator[str]:
    """The commands of a text that install shoal by another name, or with an extra that it does not have."""
    for command in INSTALL.findall(text):
        # A span of code in a sentence ends there.
        command = command.partition("`")[0].partition(" #")[0]
        for name, extras, plain in REQUIREMENT.findall(command):
            unknown = {extra for extra in extras.split(",") if extra} - EXTRAS - {FILLED_IN}
            if (name or plain) != DISTRIBUTION or unknown:
                yield command


def test_the_project_has_the_name_that_messages_give() -> None:
    assert PROJECT["name"] == DISTRIBUTION


def test_an_install_command_names_the_distribution_and_its_extras() -> None:
    assert install_command("scrapy", "redis") == f"pip install '{DISTRIBUTION}[scrapy,redis]'"


def test_requests_introduce_themselves_with_the_page_of_the_distribution() -> None:
    assert Settings().user_agent.endswith(f"(+https://pypi.org/project/{DISTRIBUTION})")


@pytest.mark.parametrize(
    "command",
    [
        "pip install 'shoal[redis]'",
        "pip install shoal",
        '/opt/shoal/bin/pip install --find-links /wheels "shoal[@extras@]==@version@" -r requirements.txt',
        f"needs `pip install '{DISTRIBUTION}[no-such]'` here",
        f"pip install '{DISTRIBUTION}[redis,no-such]'",
    ],
)
def test_a_command_that_installs_something_else_is_found(command: str) -> None:
    assert list(wrong_installs(command))


def test_every_install_command_of_the_repository_names_the_distribution_and_extras_that_it_has() -> None:
    texts = {path.relative_to(ROOT).as_posix(): path.read_bytes().decode(errors="replace") for path in tracked()}
    assert {name: found for name, text in texts.items() if (found := list(wrong_installs(text)))} == {}
    assert sum(f"{DISTRIBUTION}[" in text for text in texts.values()) > 10


def test_every_message_about_a_missing_extra_names_one_that_there_is() -> None:
    named: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "install_command":
                named |= {word.value for word in node.args if isinstance(word, ast.Constant)}
    assert named
    assert named <= EXTRAS


def test_no_message_writes_an_install_command_of_shoal_by_hand() -> None:
    literal = re.compile(r"pip install [^{\n]*shoal[\w-]*\[")
    sources = [path for path in (ROOT / "src").rglob("*.py") if literal.search(path.read_text(encoding="utf-8"))]
    assert sources == []
