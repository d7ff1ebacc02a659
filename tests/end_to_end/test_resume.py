"""A crawl that is interrupted, or runs out of disk, goes on where it was: complete, and nothing twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.testing.chaos import graph_spider
from shoal.testing.sites.site_process import SiteProcess, site_process
from shoal.testing.waiting import wait_until

SPIDER = Path(graph_spider.__file__)
PAGES = 300
SECONDS = 120.0
# A full disk is not waited for for ever, but longer than a test should take.
LIMITED = """
import resource, runpy, sys
import shoal.worker.outages
shoal.worker.outages.STORAGE_PATIENCE_SECONDS = 0.5
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.argv = ["shoal", *sys.argv[2:]]
runpy.run_module("shoal", run_name="__main__")
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SiteProcess]:
    with site_process("--graph", str(PAGES), log=tmp_path / "hits.jsonl") as site:
        yield site


class Runs:
    """`shoal run` of the graph, as often as a test wants, in one folder."""

    def __init__(self, folder: Path, site: SiteProcess, *, rate: str) -> None:
        self.folder = folder
        self.site = site
        source = SPIDER.read_text(encoding="utf-8")
        head = f'class Graph(Spider):\n    start = ["{site.url}"]\n    rate = "{rate}"\n    pace = "fixed"\n'
        (folder / "graph.py").write_text(source.replace("class Graph(Spider):\n", head), encoding="utf-8")
        self.arguments = ["run", "graph.py", "--allow-private", "--ignore-robots", "--json"]

    def start(self, *more: str, limit: int | None = None) -> subprocess.Popen[str]:
        prefix = ["-m", "shoal"] if limit is None else ["-c", LIMITED, str(limit)]
        return subprocess.Popen(
            [sys.executable, *prefix, *self.arguments, *more],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"SHOAL_GRACE_SECONDS": "5"},
        )

    def finish(self, *more: str) -> dict[str, object]:
        """Run to the end; gives the summary."""
        process = self.start(*more)
        output, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, errors
        summary: dict[str, object] = json.loads(output)
        return summary

    def hits(self) -> Counter[str]:
        return Counter(hit.path for hit in self.site.hits())

    def wait_for(self, hits: int) -> None:
        wait_until(lambda: self.hits().total() >= hits, otherwise=f"there were not {hits} requests")

    def check(self, summary: dict[str, object]) -> None:
        assert summary["state"] == "finished"
        assert summary["outcomes"] == {"ok": PAGES}
        assert (summary["items"], summary["left"], summary["dead"]) == (PAGES, 0, 0)


@pytest.mark.parametrize(
    ("number", "workers", "times"), [pytest.param(signal.SIGTERM, 2, 3, marks=pytest.mark.full), (signal.SIGINT, 1, 1)]
)
def test_an_interrupted_crawl_is_resumed_to_the_end_and_no_page_is_fetched_twice(
    tmp_path: Path, site: SiteProcess, number: signal.Signals, workers: int, times: int
) -> None:
    runs = Runs(tmp_path, site, rate="100/s")
    for _ in range(times):
        before = runs.hits().total()
        process = runs.start("--workers", str(workers))
        runs.wait_for(before + 30)
        process.send_signal(number)
        output, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 130, errors
        assert json.loads(output)["interrupted"] is True
    summary = runs.finish("--workers", str(workers))
    assert summary["resumed"] is True
    runs.check(summary)
    assert (len(runs.hits()), max(runs.hits().values())) == (PAGES, 1)


def test_a_full_disk_is_one_clear_line_and_the_crawl_is_resumed_later(tmp_path: Path, site: SiteProcess) -> None:
    runs = Runs(tmp_path, site, rate="unlimited")
    process = runs.start(limit=360_000)
    output, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 1, errors
    assert output == ""
    [line] = [line for line in errors.splitlines() if line.startswith("shoal: ")]
    assert "shoal.db" in line
    assert "disk" in line
    assert "Traceback" not in errors
    assert 0 < runs.hits().total() < 2 * PAGES
    runs.check(runs.finish())
    assert len(runs.hits()) == PAGES
