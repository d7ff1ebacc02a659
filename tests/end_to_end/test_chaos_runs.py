"""`shoal chaos` finds nothing wrong with shoal, whatever is done to it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.testing.servers.clocks import is_installed
from shoal.testing.servers.object_server import MotoServer
from shoal.testing.servers.postgres_server import find_postgres
from shoal.testing.servers.programs import find_program

SECONDS = 280.0  # before the test's own time is over, so that what the run said is shown
PAGES = 300


def chaos(folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    """The report of a run that kept every promise, and what was shown meanwhile."""
    command = [sys.executable, "-m", "shoal", "chaos", *options, "--json"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["ok"] + report["dead"] == report["acknowledged"] == report["attempted"]
    assert (report["lost"], report["duplicated"], report["unexpected"], report["pace_violations"]) == (0, 0, 0, 0)
    return report, result.stderr


# Thirteen seconds: at the paced rate 1,080 pages take nine, which is how long four kills, one freeze past the leases
# and the starts of the new workers need.
def test_workers_that_are_killed_and_stopped_lose_and_double_nothing(tmp_path: Path) -> None:
    options = ["--kills", "4", "--workers", "3", "--pages", "1080", "--seed", "7", "--deeds", "kill,freeze,late"]
    report, shown = chaos(tmp_path, *options)
    assert report["ok"] == 1080
    assert (report["kills"], report["freezes"]) == (4, 1)
    assert report["recovered"] > 0
    # Each lease that the straggler could borrow is settled late twice.
    assert report["stale_settles_refused"] >= report["late_settles"] >= 2
    assert "gets SIGKILL" in shown
    assert "is stopped past its leases" in shown


# Fifteen seconds: the pages alone would take two. The last ones are kept back until the last new worker is killed.
@pytest.mark.full
def test_a_site_that_is_too_small_for_its_deeds_is_held_until_all_are_done(tmp_path: Path) -> None:
    options = ["--kills", "4", "--pages", "100", "--seed", "7", "--deeds", "kill,freeze,stall"]
    report, _ = chaos(tmp_path, *options)
    assert (report["kills"], report["freezes"], report["stalls"]) == (4, 1, 1)
    assert report["ok"] == 100


# Eight seconds: at their common pace the 480 pages of both take four, which is how long the kills need.
@pytest.mark.full
def test_two_crawls_of_one_site_lose_nothing_and_keep_its_pace_together(tmp_path: Path) -> None:
    options = ["--crawls", "2", "--kills", "3", "--pages", "240", "--seed", "7", "--deeds", "kill,late"]
    report, shown = chaos(tmp_path, *options)
    assert (report["crawls"], report["attempted"], report["kills"]) == (2, 480, 3)
    assert "3 workers for each of 2 crawls" in shown
    # The fleet with fewer kills is hit next.
    assert "of crawl 1 gets SIGKILL" in shown
    assert "of crawl 2 gets SIGKILL" in shown


# Ten seconds: the file is locked for three and a half of them.
@pytest.mark.full
def test_a_locked_file_and_a_stepped_clock_cost_no_page_an_attempt(tmp_path: Path) -> None:
    report, shown = chaos(tmp_path, "--pages", "600", "--seed", "7", "--deeds", "stall,clock")
    assert (report["stalls"], report["charged"]) == (1, 0)
    assert report["clock_steps"] == (2 if is_installed() else 0)
    assert ("left out: clock" in shown) != is_installed()


# Ten seconds: the slow feeder keeps its last pages until the crawl has nothing else to do.
@pytest.mark.full
def test_every_page_of_two_feeders_is_done_though_one_is_killed(tmp_path: Path) -> None:
    report, _ = chaos(tmp_path, "--pages", str(PAGES), "--seed", "7", "--deeds", "feed")
    assert (report["dead_feeders"], report["ok"]) == (1, PAGES)


# Fifteen seconds: each of two pages ends three workers, each of two others one, and every end costs a new start.
@pytest.mark.full
def test_pages_that_kill_their_workers_are_dead_letters_and_no_others(tmp_path: Path) -> None:
    report, _ = chaos(tmp_path, "--pages", str(PAGES), "--seed", "7", "--deeds", "deadly")
    assert (report["deadly_pages"], report["dead"], report["ok"]) == (4, 2, PAGES - 2)


# Twenty seconds: a worker hangs four times, each time for longer than a handler may take.
@pytest.mark.full
def test_workers_that_hang_are_replaced_and_their_page_is_a_dead_letter(tmp_path: Path) -> None:
    report, _ = chaos(tmp_path, "--pages", str(PAGES), "--seed", "7", "--deeds", "hang")
    assert (report["hanging_pages"], report["dead"], report["ok"]) == (2, 1, PAGES - 1)


# Twenty seconds: the server is away for a moment, and stands still for longer than a lease.
@pytest.mark.full
def test_a_redis_server_that_is_killed_stopped_and_cut_off_loses_nothing(tmp_path: Path) -> None:
    find_program("redis-server")
    deeds = "restart,stall,reset,clock"
    sizes = ["--pages", "600", "--kills", "5"]
    report, _ = chaos(tmp_path, "--frontier", "redis", *sizes, "--seed", "7", "--deeds", deeds)
    assert (report["restarts"], report["stalls"], report["resets"]) == (1, 1, 3)
    assert report["clock_steps"] == (2 if is_installed() else 0)
    assert (report["charged"], report["ok"]) == (0, 600)


# Fifteen seconds, some of them for a database of its own.
@pytest.mark.full
def test_a_postgres_server_that_is_killed_and_cut_off_loses_nothing(tmp_path: Path) -> None:
    find_postgres()
    deeds = "backend,store-restart,reset"
    report, _ = chaos(tmp_path, "--store", "postgres", "--pages", "600", "--seed", "7", "--deeds", deeds)
    assert (report["backends"], report["store_restarts"], report["resets"]) == (2, 1, 3)
    assert report["store"] == "postgresql"
    assert (report["charged"], report["ok"]) == (0, 600)


# Ten seconds: two runs of the smallest site.
@pytest.mark.full
def test_runs_in_a_row_have_seeds_in_a_row(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shoal", "chaos", "--runs", "2", "--pages", "100", "--seed", "7"]
    result = subprocess.run(
        [*command, "--deeds", "late"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "run 1 of 2, seed 7: kept in" in result.stderr
    assert "run 2 of 2, seed 8: kept in" in result.stderr
    assert "kept 2 times in" in result.stdout


@pytest.mark.parametrize(
    ("deeds", "line"),
    [
        ("kil,freeze", "--deeds: there is no deed 'kil'; did you mean 'kill'?"),
        ("bribe", "--deeds: there is no deed 'bribe'; there are kill, freeze, late, restart"),
    ],
)
def test_an_unknown_deed_is_refused_with_those_there_are(tmp_path: Path, deeds: str, line: str) -> None:
    command = [sys.executable, "-m", "shoal", "chaos", "--deeds", deeds]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert result.returncode == 2
    assert line in result.stderr


# Forty seconds: a broker and a coordinator are killed and start again, and leases have to run out meanwhile.
@pytest.mark.full
def test_workers_behind_a_broker_lose_nothing_with_it_nor_with_their_coordinator(tmp_path: Path) -> None:
    find_program("rabbitmq-server")
    options = ["--pipe", "amqp", "--kills", "2", "--seed", "7", "--deeds", "kill,reset,broker,coordinator,late"]
    report, shown = chaos(tmp_path, *options)
    assert (report["pipe"], report["brokers"], report["coordinators"], report["kills"]) == ("amqp", 1, 2, 2)
    assert "restart 1 of the broker" in shown


# Twenty seconds: each lease of the killed processes comes back when SQS delivers its message again.
@pytest.mark.full
def test_workers_and_a_coordinator_at_sqs_that_are_killed_lose_nothing(tmp_path: Path, moto: MotoServer) -> None:
    pipe = moto.queues_url("chaos", redelivery=5)
    sizes = ["--pages", "100", "--kills", "1", "--seed", "7"]
    report, _ = chaos(tmp_path, "--pipe", pipe, *sizes, "--deeds", "kill,coordinator")
    assert (report["kills"], report["coordinators"], report["ok"]) == (1, 2, 100)
