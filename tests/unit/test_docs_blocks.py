"""The fenced blocks of the documents: each is run by a test or says why not, and what is not run is at least right.

tests/end_to_end/test_documents.py runs commands, spiders and SQL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click import ClickException

from checks.command_words import check_words
from docs_pages import PAGES, ROOT, Block, blocks, command_lines, is_generated, name_of, shoal_words
from shoal import Spider
from shoal.crawl.sources import check_start
from shoal.duties.alerts.config import load_alerts
from shoal.duties.schedules.config import load_schedules
from shoal.exits.configuration import load_pools
from shoal.exits.offered import load_own_exits
from shoal.run.intakes import settings_of
from shoal.settings.layers import file_layer, resolve
from shoal.settings.table import EXITS_VARIABLE

pytestmark = pytest.mark.full

# Languages that a test runs, reads or draws; text is what a command before it has printed.
RUN = {"sh", "python", "toml", "yaml", "json", "sql", "text", "mermaid"}

FED = "docs/how-to/fed-from-outside.md"  # its spider has no start


def python_blocks() -> Iterator[tuple[str, str]]:
    for path in PAGES:
        for number, block in enumerate(blocks(path)):
            if block.language == "python":
                yield f"{name_of(path)}, block {number}", block.text


def test_all_python_in_the_documents_compiles() -> None:
    found = dict(python_blocks())
    assert len(found) >= 5
    for place, source in found.items():
        compile(source, place, "exec")


def test_spiders_in_the_documents_have_settings_that_exist() -> None:
    number = 0
    for place, source in python_blocks():
        if "(Spider):" in source:
            names: dict[str, Any] = {}
            exec(compile(source, place, "exec"), names)
            for spider in [value for value in names.values() if isinstance(value, type) and value is not Spider]:
                if issubclass(spider, Spider):
                    settings_of(spider, {}, folder=ROOT / "docs")
                    if "def parse" in source:  # others show settings alone
                        check_start(spider(), stays=place.startswith(FED))
                    number += 1
    assert number >= 5


def test_the_command_line_takes_every_call_of_shoal_in_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # --exits looks into its file at once, and tells worker processes of it.
    (tmp_path / "exits.toml").write_text('[exits.own]\nurls = ["10.0.0.9:3128"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(EXITS_VARIABLE, "")
    checked, refused = 0, []
    for path in PAGES:
        for line in [line for block in blocks(path) for line in command_lines(block)]:
            for words in shoal_words(line):
                checked += 1
                try:
                    check_words(words)
                except ClickException as error:
                    refused.append(f"{name_of(path)}: {line}: {error}")
    assert refused == []
    assert checked > 100


def test_every_block_of_the_documents_is_run_or_marked_why_not() -> None:
    wrong = []
    for path in [path for path in PAGES if not is_generated(path)]:
        was_run = False
        for number, block in enumerate(blocks(path)):
            if fault := fault_of(block, was_run=was_run):
                wrong.append(f"{name_of(path)}, block {number}: {fault}")
            if block.language in {"sh", "console"}:
                was_run = not block.mark
    assert wrong == []


def fault_of(block: Block, *, was_run: bool) -> str:
    """What is missing for a block to be run by tests/end_to_end/test_documents.py, or to be left out with a reason."""
    if block.mark == "run by":
        return "" if (ROOT / block.why).is_file() else f"it is run by {block.why}, which is not there"
    if block.mark:
        return "" if len(block.why.split()) >= 4 and "slow" not in block.why else "its mark gives no reason"
    if block.language not in RUN:
        return f"no test runs the language {block.language!r}: mark it with <!-- not run: WHY -->"
    if block.language == "text" and not was_run:
        return "it shows what no command before it has printed: mark it with <!-- not run: WHY -->"
    return ""


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (Block("ruby", "", "puts 1\n"), "no test runs"),
        (Block("text", "", "done\n"), "no command before it"),
        (Block("sh", "", "shoal demo\n", "not run", "slow"), "no reason"),
        (Block("sh", "", "shoal demo\n", "run by", "tests/gone.py"), "not there"),
    ],
)
def test_a_block_that_is_neither_run_nor_marked_is_found(block: Block, said: str) -> None:
    assert said in fault_of(block, was_run=False)


def test_data_in_the_documents_can_be_read(tmp_path: Path) -> None:
    config, checked = tmp_path / "shoal.toml", 0
    for place, block in [(name_of(path), block) for path in PAGES for block in blocks(path)]:
        if block.language == "toml":
            config.write_text(re.sub(r"bind:[^\"]+", "bind:127.0.0.1", block.text), encoding="utf-8")
            read_config(config, place)
        elif block.language == "yaml":
            assert isinstance(yaml.safe_load(block.text), dict), place
        elif block.language == "json":
            json.loads(block.text)
        checked += block.language in {"toml", "yaml", "json"}
    assert checked > 8


def read_config(config: Path, place: str) -> None:
    """As a crawl, `shoal serve` and the watcher read it."""
    names = set(re.findall(r"(?:_env|env) = \"(\w+)\"", config.read_text(encoding="utf-8")))
    for name in set(re.findall(r"(?:file|password_file) = \"([\w.-]+)\"", config.read_text(encoding="utf-8"))):
        (config.parent / name).write_text("http://10.0.0.9:3128\n", encoding="utf-8")
    environ = dict.fromkeys(names, "https://user:word@10.0.0.8:3128/")
    if "[exits." in config.read_text(encoding="utf-8"):
        assert load_own_exits(config, environ).specs
        return
    origin, values = file_layer(config)
    resolve([(origin, values)])
    pools = load_pools(config, environ=environ)
    schedules = load_schedules(config)
    alerts = load_alerts(config, environ=environ)
    assert values or pools or schedules or alerts, f"{place}: nothing was read"
