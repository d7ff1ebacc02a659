"""What the benchmark writes: the tables, RESULTS.md and the chart."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import pytest

from bench import __main__ as bench_main
from bench.case import Bar, Case, Figure, spread_of
from bench.chart import LABEL_WIDTH, WIDTH, chart
from bench.idle import ServerWatch, busy_note, cpu_seconds, idle_share
from bench.machine import Machine
from bench.report import Record, figure_text, load, results_page, save, terminal_report, write_documents

MACHINE = Machine(processor="Abacus", cores=2, memory_bytes=24 * 1024**3, kernel="Linux 6.1", python="3.11.7")
SVG = "{http://www.w3.org/2000/svg}"


def figure(value: float, *, wanted: float = 20, sense: Literal["at least", "at most"] = "at least") -> Figure:
    return Figure(what="shoal against Scrapy", value=value, wanted=wanted, sense=sense, unit=" times")


def case(letter: str = "A", *, title: str = "one fast host", figures: list[Figure] | None = None) -> Case:
    return Case(
        letter=letter,
        title=title,
        how=["64 requests in flight"],
        columns=["", "pages/s", "CPU"],
        rows=[["shoal, SQLite", "2,271", "0.46"], ["Scrapy", "143", "6.99"]],
        figures=figures or [],
        bars=[Bar(label="shoal, SQLite", value=2271), Bar(label="Scrapy", value=143)],
        notes=["the server was busy"],
    )


def record(kept: Case, *, date: str = "2026-11-16") -> Record:
    return Record(case=kept, date=date, rounds=3, machine=MACHINE, versions={"shoal": "0.1.0"})


def test_the_terminal_shows_the_table_in_columns_with_figures_and_notes() -> None:
    lines = terminal_report(case(figures=[figure(15.9), figure(20.0)])).splitlines()
    assert lines[1] == "A. one fast host"
    assert lines[3:5] == ["  shoal, SQLite    2,271  0.46", "  Scrapy             143  6.99"]
    assert "  not reached: shoal against Scrapy 15.90 times, wanted at least 20 times" in lines
    assert "  reached: shoal against Scrapy 20 times, wanted at least 20 times" in lines
    assert lines[-1] == "  note: the server was busy"


@pytest.mark.parametrize(
    ("sense", "value", "shown"),
    [
        ("at least", 19.999, "19.99"),
        ("at least", 20.001, "20"),
        ("at most", 20.001, "20.01"),
        ("at most", 1.15, "1.15"),
    ],
)
def test_a_figure_that_was_missed_by_little_is_not_shown_as_reached(
    sense: Literal["at least", "at most"], value: float, shown: str
) -> None:
    assert f"Scrapy {shown} times," in figure_text(figure(value, sense=sense))


def test_a_run_of_one_case_renews_its_part_alone(tmp_path: Path) -> None:
    for letter in "BA":
        save(record(case(letter), date="2026-01-01"), folder=tmp_path / "results")
    save(record(case("A", title="another host"), date="2026-02-02"), folder=tmp_path / "results")
    write_documents(tmp_path)
    page = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert [kept.case.title for kept in load(tmp_path / "results")] == ["another host", "one fast host"]
    assert page.index("## A. another host") < page.index("## B. one fast host")
    assert "Measured on 2026-02-02, 3 rounds: Abacus, 2 cores, 24 GiB, Linux 6.1, Python 3.11.7." in page
    assert "Measured on 2026-01-01" in page
    assert "A. another host" in (tmp_path / "chart.svg").read_text(encoding="utf-8")


def test_what_is_kept_comes_back_whole(tmp_path: Path) -> None:
    kept = record(case(figures=[figure(15.9)]))
    save(kept, folder=tmp_path)
    assert load(tmp_path) == [kept]


def test_the_page_says_which_figures_were_reached() -> None:
    page = results_page([record(case(figures=[figure(15.9), figure(0.9, sense="at most")]))])
    assert "| A | [one fast host](#a-one-fast-host) | 1 of 2 | 2026-11-16 |" in page
    assert "| shoal against Scrapy | 15.90 times | at least 20 times | not reached |" in page
    assert "| shoal against Scrapy | 0.90 times | at most 20 times | reached |" in page
    assert "Note: the server was busy" in page


def test_a_bar_in_a_cell_does_not_break_the_table() -> None:
    odd = Case(letter="A", title="t", how=[], columns=["", "a|b"], rows=[["x", "1"]])
    assert "|  | a\\|b |" in results_page([record(odd)])


def test_the_chart_is_xml_whatever_the_names_are() -> None:
    odd = Case(letter="A", title='<b> & "c"', how=[], columns=[], rows=[], bars=[Bar(label="a < b & c", value=3)])
    texts = ["".join(element.itertext()) for element in ElementTree.fromstring(chart([odd])).iter(f"{SVG}text")]
    assert texts[0].startswith('A. <b> & "c"')
    assert texts[1:] == ["a < b & c", "3.00"]


def test_bars_are_as_long_as_their_values_within_a_case_and_shoals_stand_out() -> None:
    empty = Case(letter="B", title="no bars", how=[], columns=[], rows=[])
    root = ElementTree.fromstring(chart([case(), empty]))
    ours, theirs = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") != "ground"]
    assert (ours.get("class"), theirs.get("class")) == ("ours", "peer")
    assert float(theirs.attrib["width"]) / float(ours.attrib["width"]) == pytest.approx(143 / 2271, abs=0.001)
    assert LABEL_WIDTH + float(ours.attrib["width"]) < WIDTH
    assert "no bars" not in chart([case(), empty])


def test_a_chart_of_nothing_is_a_chart() -> None:
    zero = Case(letter="A", title="t", how=[], columns=[], rows=[], bars=[Bar(label="none", value=0)])
    for cases in ([], [zero]):
        ElementTree.fromstring(chart(cases))


def test_a_case_that_does_not_exist_is_named_with_those_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_main, "CASES", {"A": "a", "J": "j", "C": "c"})
    assert bench_main.chosen("") == ["A", "C", "J"]
    assert bench_main.chosen("ja") == ["A", "J"]
    with pytest.raises(SystemExit, match=r"^there is no case X; there are A, C, J$"):
        bench_main.chosen("AX")


def test_the_spread_of_equal_runs_is_one_number() -> None:
    assert spread_of([3.0, 1.0, 2.0]).shown() == "2 (1 to 3)"
    assert spread_of([2.0, 2.0]).shown() == "2"


def test_idle_is_what_a_server_left_of_its_processor() -> None:
    assert idle_share(1.5, seconds=2.0) == 0.25
    assert idle_share(2.1, seconds=2.0) == 0.0
    assert busy_note("shoal", 0.25) == []
    assert busy_note("shoal", 0.19) == [
        "shoal: the server was idle for 19% of the time only, so it was (nearly) the limit"
    ]


def test_a_watch_counts_what_a_process_uses_from_its_beginning() -> None:
    pid = os.getpid()
    watch, before = ServerWatch(pid), cpu_seconds(pid)
    while cpu_seconds(pid) < before + 0.05:
        pass
    assert watch.cpu_seconds() == pytest.approx(0.05, abs=0.04)
    assert watch.cpu_seconds() < time.process_time()
    assert 0.0 <= watch.idle_share() < 1.0
