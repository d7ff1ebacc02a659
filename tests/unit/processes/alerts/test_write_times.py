"""How long writes took lately, from workers' totals; and which disks a crawl lies on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from shoal.duties.alerts.watcher import WriteTimes, disks_of
from shoal.model import Figures, Heartbeat


def worker(writes: int, seconds: float, *, name: str = "w1") -> Heartbeat:
    figures = Figures(writes=writes, write_seconds=seconds)
    return Heartbeat(worker=name, crawl="c", host="h", pid=1, version="1", slots=1, figures=figures)


def test_the_first_reading_says_nothing() -> None:
    """Its totals may be of a whole night."""
    assert WriteTimes().read([worker(1_000, 5_000.0)], now=0.0) is None


def test_the_mean_is_of_what_was_written_since() -> None:
    times = WriteTimes()
    times.read([worker(1_000, 5_000.0)], now=0.0)
    assert times.read([worker(1_010, 5_002.0)], now=10.0) == pytest.approx(0.2)


def test_the_writes_of_all_workers_count_each_as_often_as_it_wrote() -> None:
    times = WriteTimes()
    times.read([worker(0, 0.0), worker(0, 0.0, name="w2")], now=0.0)
    assert times.read([worker(9, 0.9), worker(1, 3.1, name="w2")], now=10.0) == pytest.approx(0.4)


def test_without_a_write_there_is_no_mean() -> None:
    times = WriteTimes()
    times.read([worker(10, 1.0)], now=0.0)
    assert times.read([worker(10, 1.0)], now=10.0) is None
    assert times.read([], now=20.0) is None


def test_what_is_older_than_a_minute_does_not_count() -> None:
    """A slow minute that has passed is forgotten; readings come every ten seconds."""
    times = WriteTimes()
    found = [times.read([worker(number, 5.0 * min(number, 6))], now=10.0 * number) for number in range(14)]
    assert found[6] == pytest.approx(5.0)
    assert found[7] == pytest.approx(5.0 * 5 / 6)
    assert found[12] == pytest.approx(0.0)


def test_readings_that_lie_far_apart_are_compared_all_the_same() -> None:
    times = WriteTimes()
    times.read([worker(0, 0.0)], now=0.0)
    assert times.read([worker(10, 5.0)], now=3_600.0) == pytest.approx(0.5)


def test_a_worker_that_joined_or_began_anew_counts_from_its_next_reading_on() -> None:
    times = WriteTimes()
    times.read([worker(100, 10.0)], now=0.0)
    anew = [worker(2, 8.0), worker(3, 9.0, name="w2")]
    assert times.read(anew, now=10.0) is None


def test_files_and_folders_of_one_disk_are_one_disk(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    (disk,) = disks_of([str(tmp_path / "shoal.db"), str(tmp_path / "archive"), str(tmp_path)])
    usage = shutil.disk_usage(tmp_path)
    assert (disk.path, disk.total) == (str(tmp_path), usage.total)
    assert 0 < disk.free <= disk.total


def test_a_file_that_is_not_there_yet_lies_where_it_will_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [disk.path for disk in disks_of(["shoal.db"])] == [str(tmp_path)]


def test_a_folder_that_is_gone_is_no_disk(tmp_path: Path) -> None:
    assert disks_of([str(tmp_path / "gone" / "shoal.db")]) == []
    assert len(disks_of([str(tmp_path / "gone" / "shoal.db"), str(tmp_path / "shoal.db")])) == 1


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no second file system that everybody may read")
def test_places_on_two_disks_are_two(tmp_path: Path) -> None:
    if os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("the tests' own folder lies there as well")
    assert [disk.path for disk in disks_of([str(tmp_path), "/dev/shm"])] == [str(tmp_path), "/dev/shm"]
