"""What the benchmark writes: the tables, RESULTS.md and the chart."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import msgspec
import pytest

from bench import __main__ as bench_main
from bench.case import Bar, Case, Figure, Plan, spread_of
from bench.chart import LABEL_WIDTH, WIDTH, chart, counterpart
from bench.idle import ServerWatch, busy_note, cpu_seconds, idle_share
from bench.machine import Machine
from bench.progress import telling
from bench.report import Record, figure_text, load, results_page, save, terminal_report, write_documents

pytestmark = pytest.mark.full

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


def test_a_figure_that_was_not_reached_says_what_bounds_it() -> None:
    slow, fast = (msgspec.structs.replace(figure(value), bound_by="the parser") for value in (15.9, 20.0))
    page = results_page([record(case(figures=[slow, fast]))])
    assert "| 15.90 times | at least 20 times | not reached: the parser |" in page
    assert "| 20 times | at least 20 times | reached |" in page


def test_a_unit_stands_apart_from_its_number() -> None:
    odd = Figure(what="memory", value=1.74, wanted=1.05, sense="at most", unit="times")
    assert figure_text(odd) == "memory 1.74 times, wanted at most 1.05 times"
    assert figure_text(msgspec.structs.replace(odd, unit="")) == "memory 1.74, wanted at most 1.05"


def test_what_several_cases_say_stands_once() -> None:
    page = results_page([record(case(letter)) for letter in "ABC"])
    assert page.count("- 64 requests in flight\n") == 1
    assert "## In common: cases A, B and C\n" in page
    assert page.count("[what cases A, B and C have in common](#in-common-cases-a-b-and-c)") == 3
    alone = results_page([record(case())])
    assert "64 requests in flight" in alone
    assert "In common" not in alone


def test_versions_stand_once_with_the_cases_that_they_matter_for() -> None:
    versions = {"shoal": "0.1.0", "nginx": "1.22", "scrapy, for scrapy": "2.19", "requests, for brpop": "2.34"}
    first, second = (msgspec.structs.replace(record(case(letter)), versions=versions) for letter in "AB")
    third = msgspec.structs.replace(record(case("C")), versions=versions | {"shoal": "0.2.0"})
    rows = results_page([first, second, third]).partition("## Versions")[2].splitlines()[4:]
    assert rows == [
        "| shoal and its libraries | shoal 0.1.0 | A and B |",
        "| shoal and its libraries | shoal 0.2.0 | C |",
        "| servers and programs | nginx 1.22 | A, B and C |",
        "| Scrapy | scrapy 2.19 | A, B and C |",
    ]


def test_what_is_kept_is_enough_for_the_page_and_the_chart_of_the_repository() -> None:
    """Whoever changes how they look writes them anew: `python -m bench.report`."""
    folder = Path(bench_main.__file__).parent
    records = load(folder / "results")
    assert (folder / "RESULTS.md").read_text(encoding="utf-8") == results_page(records)
    assert (folder / "chart.svg").read_text(encoding="utf-8") == chart([kept.case for kept in records])


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
    values = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")][2::2]
    assert values == ["2,271", "143 shoal 15.8 ×"]
    assert LABEL_WIDTH + float(ours.attrib["width"]) < WIDTH
    assert "no bars" not in chart([case(), empty])


@pytest.mark.parametrize(
    ("peer", "ours"),
    [
        ("Scrapy", "shoal, SQLite, one host"),
        ("scrapy-redis", "shoal, Redis, one host"),
        ("scrapy-redis + PostgreSQL", "shoal, Redis + PostgreSQL"),
        ("bare loop, 100 hosts", "shoal, SQLite, 100 hosts"),
    ],
)
def test_a_peer_is_compared_with_shoal_in_the_same_form(peer: str, ours: str) -> None:
    names = ["SQLite, one host", "Redis, one host", "Redis + PostgreSQL", "SQLite, 100 hosts", "Redis, 100 hosts"]
    bars = [Bar(label=f"shoal, {name}", value=1) for name in names]
    assert counterpart(Bar(label=peer, value=1), bars).label == ours


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


def test_the_end_of_a_run_says_what_each_case_took() -> None:
    ended = {"J": bench_main.Ended(2.4, 2.0), "A": bench_main.Ended(14.2, 12.0)}
    lines = ["", "case A 14 s, 12 CPU-s", "case J 2 s, 2 CPU-s", "in all 15 s, 14 CPU-s"]
    assert bench_main.times_told(ended, seconds=15.1).splitlines() == lines


def test_a_full_run_has_one_case_after_another() -> None:
    assert bench_main.lanes(list("ADEGI"), Plan(quick=False, rounds=3)) == [[["A"], ["D"], ["E"], ["G"], ["I"]]]


def test_a_quick_run_has_two_lanes_and_cases_that_mostly_wait_at_once() -> None:
    quick = Plan(quick=True, rounds=1)
    assert bench_main.lanes(list("ADEGI"), quick) == [[["A"]], [["E"], ["D", "G", "I"]]]
    assert bench_main.lanes(["D"], quick) == [[["D"]]]
    run = [letter for lane in bench_main.lanes(bench_main.chosen(""), quick) for group in lane for letter in group]
    assert sorted(run) == sorted(bench_main.CASES)


def test_what_takes_its_time_says_so_while_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    seen = ""
    with telling("building", every=0.01):
        while "so far" not in seen:
            seen += capsys.readouterr().out
    assert seen.splitlines()[:2] == ["building ...", "building: 0 s so far"]
    assert capsys.readouterr().out.splitlines()[-1] == "building: done after 0 s"


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
