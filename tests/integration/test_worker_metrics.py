"""`shoal worker --metrics`: what a worker process tells of itself."""

from __future__ import annotations

import re
import urllib.request

from command_line import Folder
from prometheus_client.parser import text_string_to_metric_families

from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import wait_until

PRODUCTS = 40


def test_a_worker_tells_its_own_figures(folder: Folder, site: SiteProcess) -> None:
    spider = folder.spider(site.url, rate="2/s")
    with folder.start("worker", spider, "--metrics", "0") as worker, folder.start("run", spider) as running:
        assert worker.stderr is not None
        port = next(
            found[1] for line in worker.stderr if (found := re.search(r"metrics are served on port (\d+)", line))
        )

        def pages() -> float:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                families = text_string_to_metric_families(answer.read().decode())
                samples = {one.name: one for family in families for one in family.samples}
            assert samples["process_resident_memory_bytes"].value > 1_000_000
            found = samples.get("shoal_fetch_seconds_count")
            assert found is None or found.labels["crawl"] == "books-1"
            return found.value if found else 0.0

        assert wait_until(pages, otherwise="no request is told", pause=0.1) > 0
        folder.hurry(site.url)
        assert running.wait(120) == 0
        worker.terminate()
        assert worker.wait(60) == 0


def test_a_slip_is_refused_in_one_line(folder: Folder, site: SiteProcess) -> None:
    refused = folder.run("worker", folder.spider(site.url), "--metrics", "nine", code=2).stderr
    assert "write a port, as 9100" in refused
