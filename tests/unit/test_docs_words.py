"""The table of other people's words leads to words, settings, flags, commands and metrics that are here."""

from __future__ import annotations

import re

import click
import pytest

import shoal
from docs_pages import ROOT
from shoal.cli.main import COMMANDS
from shoal.cli.main import shoal as program
from shoal.settings.table import FIELDS

pytestmark = pytest.mark.full

PAGE = ROOT / "docs" / "explanation" / "words.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| the word"))
]
CODE = re.compile(r"`([^`]+)`")
# Arguments of `follow` and `Request`, an attribute of a spider, kinds and keys: names that are in no table.
OURS = {
    "priority=",
    "delay=",
    "start",
    "shoal:inbox:SPIDER",
    "browser",
    "priority=10",
    "priority=0",
    "nice",
    "books-1",
    "{url}",
}
ASKED_FOR = (
    "visibility timeout", "ack", "prefetch", "consumer group", "token bucket", "AutoThrottle", "dead letter queue",
    "CONCURRENT_REQUESTS_PER_DOMAIN", "DOWNLOAD_DELAY", "SCHEDULER_PERSIST", "dupefilter", "BRPOP", "heartbeat",
)  # fmt: skip
# A word that people look up, and what its row must lead to: a setting, a flag, a command or a page.
LEADS_TO = {
    "ON CONFLICT": "`item_key`",
    "round-robin": "`pool`",
    "geo-targeting": "`region`",
    "ScraperAPI": "(../how-to/proxies.md)",
    "egress": "(../how-to/offered-exits.md)",
    "vertical scaling": "(right-sizing.md)",
    "horizontal scaling": "`shoal advise`",
    "graceful shutdown": "`grace_seconds`",
    "bandwidth": "`max_bytes`",
    "Symfony Messenger": "(../how-to/from-queues.md)",
    "RQ": "(../how-to/from-queues.md)",
    "Scrapyd": "`shoal serve`",
    "job_id": "`Request(key=…)`",
    "batch insert": "`flush_pages`",
    "page count": "`Pages(last=…)`",
    "leader lock": "**duty**",
}


def glossary() -> set[str]:
    table = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## Glossary")[2]
    return {line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")} - {"word"}


def flags() -> set[str]:
    context = click.Context(program)
    found = [program.get_command(context, name) for name in COMMANDS]
    return {flag for command in found if command for option in command.params for flag in option.opts}


def is_command(line: str) -> bool:
    words = line.split()
    found: click.Command | None = program
    for word in words[1:]:
        found = found.get_command(click.Context(found), word) if isinstance(found, click.Group) else None
    return words[0] == "shoal" and len(words) > 1 and found is not None


def is_known(code: str) -> bool:
    name, _, rest = code.partition(" = ")
    if name in FIELDS and (not rest or rest.isdecimal()):
        return True
    called = re.fullmatch(r"(\w+)\((\w+)=[\w…]+\)", code)
    if called is not None:
        return called[1] in shoal.__all__ and called[2] in getattr(shoal, called[1]).__struct_fields__
    metrics = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    return (
        code in OURS
        or code in shoal.__all__
        or code in flags()
        or is_command(code)
        or (code.startswith("shoal_") and code in metrics)
    )


def words_of(row: list[str]) -> list[str]:
    return [part.replace("`", "").strip() for part in row[0].split(",")]


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:40] for row in ROWS])
def test_a_row_names_only_what_is_here(row: list[str]) -> None:
    assert len(row) == 4
    assert all(row[:3])
    known = glossary()
    bold = re.findall(r"\*\*([^*]+)\*\*", row[2])
    assert [word for word in bold if word not in known] == []
    assert [code for cell in row[2:] for code in CODE.findall(cell) if not is_known(code)] == []


def test_what_stands_before_the_tables_names_only_what_is_here() -> None:
    text = TEXT.partition("\n## ")[0]
    assert [code for code in CODE.findall(text) if not is_known(code)] == []
    for said in ("Priorities are high-first", "Limits are the fleet's", "A worker never waits at a limiter"):
        assert said in text


def test_the_words_that_people_look_up_are_in_the_first_column_once() -> None:
    first = [word for row in ROWS for word in words_of(row)]
    assert [word for word in ASKED_FOR if word not in first] == []
    assert len(first) == len(set(first))
    assert len(ROWS) > 45


@pytest.mark.parametrize("word", LEADS_TO)
def test_a_word_leads_to_what_does_it_here(word: str) -> None:
    (row,) = [row for row in ROWS if word in words_of(row)]
    assert LEADS_TO[word] in row[2] + row[3]


def test_the_page_is_linked_from_the_front_page() -> None:
    assert "(explanation/words.md)" in (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
