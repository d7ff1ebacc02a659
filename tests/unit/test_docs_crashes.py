"""docs/explanation/crashes.md says of everything that can die what follows: processes, servers, seams, machines."""

from __future__ import annotations

import re

import pytest

from docs_pages import ROOT

pytestmark = pytest.mark.full

PAGE = ROOT / "docs" / "explanation" / "crashes.md"
# How the rows of the page begin: for each seam of shoal, a folder with a base.py, and for each process and server.
SEAMS = {
    "archive": ("the object storage of an archive", "an archive in a folder"),
    "fetch": ("a site", "a browser"),
    "frontier": ("the frontier", "the Redis server", "the file `shoal.db`"),
    "pipes": ("the broker", "a message at a pipe", "the coordinator at a pipe"),
    "sinks": ("a sink", "the process that sends to a sink"),
    "store": ("the PostgreSQL server", "the file `shoal.db`"),
}
PROCESSES = (
    "a worker",
    "a supervisor",
    "the coordinator",
    "a feeder",
    "`shoal serve`",
    "the coordinator that starts runs of schedules",
    "the process that sends alerts",
    "a webhook, a mail server or a collector of traces",
)
OTHERS = (
    "a page that kills",
    "a handler",
    "an exit",
    "a proxy",
    "a connection to a server",
    "the machine",
    "the disk",
    "the clock of the frontier",
    "the clock of a worker's machine",
)


def rows() -> list[list[str]]:
    """The cells of the page's tables with the columns what, what happens, what you notice."""
    text = PAGE.read_text(encoding="utf-8")
    tables = text.split("| what | what happens | what you notice |\n|---|---|---|\n")[1:]
    lines = [line for table in tables for line in re.match(r"(?:\|.*\n)+", table)[0].splitlines()]  # type: ignore[index]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_seam_of_the_package_has_its_rows() -> None:
    assert {path.parent.name for path in ROOT.glob("src/shoal/*/base.py")} == set(SEAMS)


@pytest.mark.parametrize(
    "sufferer", sorted({*PROCESSES, *OTHERS, *(name for names in SEAMS.values() for name in names)})
)
def test_the_page_says_what_follows_when_it_dies(sufferer: str) -> None:
    assert [row for row in rows() if re.match(re.escape(sufferer) + r"(?![\w])", row[0])]


def test_every_row_says_what_happens_and_what_is_noticed() -> None:
    assert len(rows()) > 40
    assert [row for row in rows() if len(row) != 3 or not all(row)] == []


def test_the_table_exists_once() -> None:
    assert "| what you notice |" not in (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
