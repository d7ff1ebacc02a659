"""Systems beside each other: what the cases make of their runs, and which runs count."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from selectolax.lexbor import LexborHTMLParser

from bench.contest import Crawl, Rivalry, Run, Standing, System, bars_of, busy_notes, figures_of
from bench.grounds import Ground
from bench.measure import Cost
from bench.peers import check_items, check_stored
from bench.site import SitePlan, build_site, page_html

pytestmark = pytest.mark.full

MIB = 1024 * 1024


def standing(name: str, *seconds: float, cpu: float = 2.0, idle: float = 0.9, servers: float = 0.0) -> Standing:
    """Runs of 1,000 pages."""
    return Standing(name, [Run(1000, Crawl(Cost(each, cpu, 80 * MIB), servers), idle) for each in seconds])


def test_a_row_shows_the_median_with_the_spread_and_the_servers_beside_it() -> None:
    shown = standing("shoal", 1.0, 2.0, 4.0, servers=0.5).row
    assert shown == ["shoal", "1,000", "500 (250 to 1,000)", "2.000", "0.500", "80", "90%"]
    assert standing("Scrapy", 10.0).row[4] == "-"


def test_ratios_are_shown_by_cpu_and_by_speed() -> None:
    standings = {"shoal": standing("shoal", 1.0, cpu=0.5), "Scrapy": standing("Scrapy", 8.0, cpu=10.0)}
    by_cpu, by_speed = figures_of(standings, [Rivalry("shoal", "Scrapy", 12)])
    assert (by_cpu.what, by_cpu.value, by_cpu.is_reached) == ("shoal against Scrapy, by CPU", 20.0, True)
    assert (by_speed.what, by_speed.value, by_speed.is_reached) == ("shoal against Scrapy, by pages/s", 8.0, False)


def test_a_rivalry_may_count_the_cpu_of_the_servers_as_well() -> None:
    standings = {"shoal": standing("shoal", 1.0, cpu=3.0, servers=1.0), "peer": standing("peer", 1.0, servers=6.0)}
    by_cpu, by_all, _ = figures_of(standings, [Rivalry("shoal", "peer", 1.6, with_servers=True)])
    assert (by_cpu.value, by_cpu.is_reached) == (pytest.approx(2 / 3), False)
    assert (by_all.what, by_all.value, by_all.is_reached) == ("shoal against peer, by CPU with Redis", 2.0, True)


def test_a_share_of_the_bare_loop_is_in_percent() -> None:
    standings = {"shoal": standing("shoal", 2.0, cpu=1.0), "bare loop": standing("bare loop", 1.0, cpu=0.9)}
    by_cpu, by_speed = figures_of(standings, [Rivalry("shoal", "bare loop", 0.85, is_share=True)])
    assert (by_cpu.value, by_cpu.wanted, by_cpu.unit, by_cpu.is_reached) == (pytest.approx(90.0), 85.0, " %", True)
    assert (by_speed.value, by_speed.is_reached) == (50.0, False)


def test_a_peer_that_did_not_run_has_no_figure() -> None:
    standings = {"shoal": standing("shoal", 1.0)}
    assert figures_of(standings, [Rivalry("shoal", "Scrapy", 12)]) == []
    assert [bar.label for bar in bars_of(standings)] == ["shoal"]


def test_a_result_with_a_busy_server_is_marked() -> None:
    standings = {"shoal": standing("shoal", 1.0, idle=0.1), "Scrapy": standing("Scrapy", 9.0, idle=0.97)}
    [note] = busy_notes(standings)
    assert note.startswith("shoal: the server was idle for 10% of the time only")


def test_each_round_runs_every_system_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import contest

    order = []

    def run(system: System) -> Run:
        order.append(system.name)
        return Run(system.ground.pages, Crawl(Cost(1.0, 1.0, MIB)), 0.9)

    monkeypatch.setattr(contest, "measure", run)
    ground = Ground("http://127.0.0.1/", 10, 1)
    systems = [System(name, ground, lambda _: Crawl(Cost(1.0, 1.0, MIB))) for name in ("a", "b")]
    standings = contest.hold(systems, rounds=2)
    assert order == ["a", "b", "a", "b"]
    assert [len(of_system.runs) for of_system in standings.values()] == [2, 2]


@pytest.mark.parametrize("urls", [["a", "b"], ["a", "b", "b"], ["a", "b", "c", "c"], ["a", "b", "c", "d"]])
def test_a_run_without_exactly_one_item_per_page_does_not_count(urls: list[str], tmp_path: Path) -> None:
    items = tmp_path / "items.jsonl"
    items.write_text("".join(json.dumps({"url": url}) + "\n" for url in urls))
    with pytest.raises(SystemExit, match="instead of 3"):
        check_items("Scrapy", items, pages=3)


def test_one_item_per_page_counts(tmp_path: Path) -> None:
    items = tmp_path / "items.jsonl"
    items.write_text("".join(json.dumps({"url": url}) + "\n" for url in "abc"))
    check_items("Scrapy", items, pages=3)


@pytest.mark.parametrize("urls", ["ab", "abca", "abb"])
def test_items_in_a_store_count_as_those_in_a_file(tmp_path: Path, urls: str) -> None:
    for name, stored in ("right", "abc"), ("wrong", urls):
        with closing(sqlite3.connect(tmp_path / name)) as store, store:
            store.execute("CREATE TABLE item (data TEXT)")
            store.executemany("INSERT INTO item VALUES (?)", [(json.dumps({"url": url}),) for url in stored])
    check_stored(tmp_path / "right", pages=3)
    with pytest.raises(SystemExit, match="Scrapy on shoal has"):
        check_stored(tmp_path / "wrong", pages=3)


@pytest.mark.parametrize(("manner", "size", "links"), [("article", 16, 32), ("portal", 138, 150)])
def test_a_page_has_the_size_and_the_links_of_its_plan(manner: str, size: int, links: int) -> None:
    plan = SitePlan(pages=500, page_bytes=size * 1024, links=links, base="http://127.0.0.1:1", manner=manner)
    for number in (0, 7, 499):
        html = page_html(plan, number)
        assert len(html) == size * 1024
        assert len(LexborHTMLParser(html).css("a[href]")) == links
        assert html == page_html(plan, number)


def test_a_site_is_built_once_and_again_for_another_plan(tmp_path: Path) -> None:
    plan = SitePlan(pages=3, base="http://127.0.0.1:1")
    assert build_site(plan, folder=tmp_path / "site")
    assert not build_site(plan, folder=tmp_path / "site")
    assert (tmp_path / "site" / "robots.txt").exists()
    assert build_site(SitePlan(pages=3, base="http://127.0.0.1:2"), folder=tmp_path / "site")
