"""Does a worker's memory stay flat? `python -m bench.soak`: 100,000 pages, with samples of its memory."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.crawl import MIB
from bench.crawlers import HERE, WORK, fresh_folder
from bench.nginx import free_port, requests_served, serve
from bench.site import SitePlan, build_site

BODIES = 5_000
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)


class Sample(NamedTuple):
    """How much memory the largest process of the run had when so many pages were served."""

    pages: int
    resident_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--pages", type=int, default=100_000, help=f"rounded up to a multiple of {BODIES:,}")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between samples")
    parser.add_argument("--json", type=Path, help="write the samples to this file")
    options = parser.parse_args()
    copies = -(-options.pages // BODIES)
    plan = SitePlan(pages=BODIES)
    build_site(plan, folder=WORK / "soak-site")
    with serve(WORK / "soak-site", port=free_port(), work=WORK / "nginx-soak") as address:
        starts = [f"{address}/copy/{copy}/{plan.path(0)}" for copy in range(copies)]
        samples = soak(starts, address=address, every=options.every)
        # The status page counts its own visits.
        served = requests_served(address) - len(samples) - 1
    if served < copies * BODIES:
        raise SystemExit(f"the crawl ended after {served:,} of {copies * BODIES:,} pages")
    _print_samples(samples)
    if options.json:
        options.json.write_text(json.dumps([sample._asdict() for sample in samples]) + "\n")


def soak(starts: list[str], *, address: str, every: float) -> list[Sample]:
    """Crawl it all in one worker and sample its memory until it ends."""
    folder = fresh_folder("soak-run")
    command = [str(Path(sys.executable).with_name("shoal")), "run", str(HERE / "shoal_spider.py"), "--workers", "1"]
    samples: list[Sample] = []
    with (folder / "output.log").open("wb") as output:
        environment = os.environ | {"BENCH_URL": " ".join(starts)}
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                samples.append(Sample(requests_served(address) - len(samples) - 1, _largest(process.pid)))
                time.sleep(every)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        raise SystemExit(f"shoal failed with {process.returncode}: see {folder / 'output.log'}")
    return samples


def _largest(pid: int) -> int:
    """Resident bytes of the largest process of the run; the workers are children of the command."""
    try:
        root = psutil.Process(pid)
        return max(process.memory_info().rss for process in [root, *root.children(recursive=True)])
    except psutil.Error:
        return 0


def _print_samples(samples: list[Sample]) -> None:
    alive = [sample for sample in samples if sample.resident_bytes]
    last = alive[-1].pages
    print(f"{'pages':>12}{'share':>8}{'MiB':>8}")
    for share in SHARES:
        sample = next(sample for sample in alive if sample.pages >= share * last)
        print(f"{sample.pages:12,}{share:8.0%}{sample.resident_bytes / MIB:8.0f}")
    print(f"{'peak':>20}{max(sample.resident_bytes for sample in alive) / MIB:8.0f}")


if __name__ == "__main__":
    main()
