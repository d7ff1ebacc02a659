"""What keeping every raw page costs: the same crawl with `--archive` and without, `python -m bench.archive`.

Runs are interleaved and repeated; the table shows medians. After each run with an archive every page must be in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from bench.crawl import Median, Run, crawl_with_shoal, prepare_site, summarise
from bench.crawlers import HERE, WORK, fresh_folder
from bench.measure import run_measured
from bench.nginx import serve
from shoal.archive import open_archive

PLAIN, KEPT = "without", "--archive"


def main() -> None:
    options = _options()
    plan = prepare_site(options.pages)
    runs: list[Run] = []
    with serve(WORK / "site", port=int(plan.base.rpartition(":")[2]), work=WORK / "nginx") as address:
        start = f"{address}/{plan.path(0)}"
        for number in range(1, options.rounds + 1):
            runs.append(crawl_with_shoal(start, total=plan.pages)._replace(system=PLAIN))
            runs.append(crawl_with_archive(start, total=plan.pages))
            print(
                f"round {number}: {runs[-2].pages_per_second:,.0f} pages/s, {runs[-1].pages_per_second:,.0f} archived"
            )
    medians = summarise(runs)
    print_table(medians, pages=plan.pages, page_bytes=plan.page_bytes)
    if options.json:
        options.json.write_text(json.dumps([row._asdict() for row in medians], indent=2) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.archive", description="a crawl with an archive and without")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind, interleaved")
    parser.add_argument("--pages", type=int, default=20_000, help="pages of the site")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def crawl_with_archive(start: str, *, total: int) -> Run:
    folder = fresh_folder("archive-run")
    program = str(Path(sys.executable).with_name("shoal"))
    command = [program, "run", str(HERE / "shoal_spider.py"), "--workers", "1", "--archive", "pages"]
    cost = run_measured(command, folder=folder, environment={"BENCH_URL": start})
    kept = asyncio.run(_captures(folder / "pages"))
    if kept != total:
        raise SystemExit(f"the archive has {kept:,} pages instead of {total:,}")
    return Run(KEPT, total, cost)


async def _captures(folder: Path) -> int:
    archive = await open_archive(str(folder))
    try:
        keys = set()
        for crawl in await archive.crawls():
            async for captures in archive.scan(crawl):
                keys |= {capture.key for capture in captures}
        return len(keys)
    finally:
        await archive.close()


def print_table(medians: list[Median], *, pages: int, page_bytes: int) -> None:
    print(f"\n{pages:,} pages of {page_bytes // 1024} kB, one process")
    print(f"{'':12}{'pages/s':>10}{'CPU-s per 1,000':>18}{'peak MiB':>12}{'runs':>7}")
    for row in medians:
        print(
            f"{row.system:12}{row.pages_per_second:10,.0f}{row.cpu_seconds_per_1000_pages:18.3f}"
            f"{row.peak_mib:12,.0f}{row.runs:7}"
        )
    plain, kept = (next(row for row in medians if row.system == name) for name in (PLAIN, KEPT))
    print(f"with an archive, pages per second: {kept.pages_per_second / plain.pages_per_second:.0%} of without")
    ratio = kept.cpu_seconds_per_1000_pages / plain.cpu_seconds_per_1000_pages
    print(f"with an archive, CPU per page: {ratio:.2f} times")


if __name__ == "__main__":
    main()
