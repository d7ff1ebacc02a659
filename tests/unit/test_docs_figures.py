"""Figures that the documents name are those of bench/results, give or take what another day makes of them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from docs_pages import ROOT, blocks

pytestmark = pytest.mark.full

NEAR = 0.15


def results(case: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "bench" / "results" / f"{case}.json").read_text(encoding="utf-8"))[
        "case"
    ]
    return found


def figure(case: str, what: str) -> float:
    """A figure that was wanted of a case."""
    return float(next(one["value"] for one in results(case)["figures"] if one["what"] == what))


def cell(case: str, row: str, column: str) -> float:
    """A cell of a case's table: its median."""
    table = results(case)
    found = next(line for line in table["rows"] if row in " ".join(line[:2]))
    return float(found[table["columns"].index(column)].split()[0].rstrip("%").replace(",", ""))


SHOWN = {
    "1,180": lambda: cell("A", "shoal, SQLite", "pages/s"),
    "14.6": lambda: figure("A", "shoal, SQLite against Scrapy, by pages/s"),
    "5.2": lambda: figure("A", "shoal, SQLite against Crawlee for Python, by pages/s"),
    "56 %": lambda: figure("A", "shoal, SQLite against bare loop, by pages/s"),
    "98 %": lambda: figure("D", "shoal, SQLite: share of the allowed rate"),
    "87 MiB": lambda: cell("H", "one host 300,000", "resident MiB"),
}


@pytest.mark.parametrize("shown", SHOWN)
def test_a_figure_of_the_front_page_is_what_was_measured(shown: str) -> None:
    assert re.search(rf"(?<![\d.,]){re.escape(shown)}", (ROOT / "docs" / "README.md").read_text(encoding="utf-8"))
    said = float(shown.split()[0].replace(",", ""))
    measured = SHOWN[shown]()
    measured *= 100 if shown.endswith("%") and measured <= 1 else 1
    assert said == pytest.approx(measured, rel=NEAR)


RIGHT_SIZING = {
    "1.0 s per 1,000 pages of 16 kB": lambda: cell("A", "shoal, SQLite", "CPU-s per 1,000 pages"),
    "2.6 s per 1,000 of 138 kB": lambda: cell("C", "shoal, SQLite", "CPU-s per 1,000 pages"),
    "0.11 s per 1,000 pages (case A)": lambda: cell("A", "shoal, Redis", "of Redis, PostgreSQL"),
    "4,300 pages per CPU-second": lambda: cell("K", "1 200", "pages per CPU-second of Redis"),
    "2,800 pages/s for the frontier alone": lambda: cell("F", "SQLite 1,000,000", "pages/s"),
    "216 bytes per waiting URL": lambda: cell("F", "Redis 10,000,000", "bytes waiting"),
    "2,020 pages/s": lambda: cell("E", "shoal, SQLite, one host", "pages/s"),
    "110 MB after 20,000 hosts": lambda: cell("H", "20,000 hosts", "resident MiB"),
}


@pytest.mark.parametrize("shown", RIGHT_SIZING)
def test_a_figure_of_the_arithmetic_is_what_was_measured(shown: str) -> None:
    page = (ROOT / "docs" / "explanation" / "right-sizing.md").read_text(encoding="utf-8")
    assert shown in page
    assert float(shown.split()[0].replace(",", "")) == pytest.approx(RIGHT_SIZING[shown](), rel=NEAR)


def test_the_front_page_has_the_spider_of_the_readme() -> None:
    spiders = [blocks(ROOT / page)[number].text for page, number in (("README.md", 1), ("docs/README.md", 0))]
    assert spiders[0] == spiders[1]
    assert len(spiders[0].splitlines()) <= 15
