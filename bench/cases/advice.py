"""Case M: what `shoal advise` says twice the workers bring, and what they bring: `python -m bench.cases.advice`."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from bench.case import Case, Figure, Plan
from bench.case_main import main
from bench.cases.latency import Shape, site
from bench.crawlers import HERE, fresh_folder

PAGES = 16_000
MEASURED_SECONDS, QUICK_SECONDS = 8, 2
FIRST_PAGES = 60
START_SECONDS = 60.0
WITHIN = 0.25

BOUND = {
    "a paced host": {"BENCH_RATE": "40/s"},
    "a heavy handler": {"BENCH_BURN": "0.01"},
    "few slots": {"BENCH_CONCURRENCY": "8"},
}


class Found(NamedTuple):
    """What was advised with one worker, and the rates with one and with two."""

    what: str
    advice: dict[str, Any]
    rate: float
    doubled: float

    @property
    def gain(self) -> float:
        return self.doubled / self.rate if self.rate else 0.0

    @property
    def error(self) -> float:
        """How far the prediction is from what was measured, as a share of that."""
        return abs(float(self.advice["gain_of_doubling"]) - self.gain) / self.gain if self.gain else 1.0


def run(plan: Plan) -> Case:
    seconds = QUICK_SECONDS if plan.quick else MEASURED_SECONDS
    found = []
    with site(Shape("one host", 1, PAGES)) as starts:
        for what, environment in [*BOUND.items()][-1:] if plan.quick else BOUND.items():
            one = advised(starts[0], environment, workers=1, seconds=seconds)
            two = advised(starts[0], environment, workers=2, seconds=seconds)
            found.append(Found(what, one, float(one["rate"]), float(two["rate"])))
            last = found[-1]
            said = f"bound by {one['bound']}, doubling {float(one['gain_of_doubling']):.2f} times said"
            print(f"M: {what}: {said}, {last.gain:.2f} measured", flush=True)
    return _case(found, seconds)


def advised(start: str, environment: dict[str, str], *, workers: int, seconds: float) -> dict[str, Any]:
    """What is advised while so many workers crawl the site."""
    folder = fresh_folder("advice-run")
    shoal = [sys.executable, "-m", "shoal"]
    command = [*shoal, "run", str(HERE / "advice_spider.py"), "--workers", str(workers)]
    with (folder / "output.log").open("wb") as log:
        crawl = subprocess.Popen(
            command, cwd=folder, env=os.environ | {"BENCH_URL": start} | environment, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        _wait_for_pages(folder, workers)
        told = subprocess.run(
            [*shoal, "advise", "--for", str(seconds), "--json"], cwd=folder, check=True, capture_output=True, text=True
        ).stdout
    finally:
        os.killpg(crawl.pid, signal.SIGKILL)
        crawl.wait()
    advice: dict[str, Any] = json.loads(told)["advice"]
    return advice


def _wait_for_pages(folder: Path, workers: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with suppress(sqlite3.Error), closing(sqlite3.connect(folder / "shoal.db")) as database:
            (found,) = database.execute("SELECT count(*) FROM item").fetchone()
            if found >= FIRST_PAGES * workers:
                return
        time.sleep(0.1)
    raise SystemExit(f"no crawl began: see {folder}/output.log")


def _case(found: list[Found], seconds: float) -> Case:
    return Case(
        letter="M",
        title="advice: what twice the workers bring",
        how=[
            "A site that takes 300 ms for a page, one host. `shoal advise` measures a crawl with one worker for"
            f" {seconds:g} s and says how many times as fast two would be; then two workers crawl the same.",
        ],
        columns=["bound by", "named", "pages/s with one", "with two", "times", "times said"],
        rows=[
            [
                one.what,
                str(one.advice["bound"]),
                f"{one.rate:,.1f}",
                f"{one.doubled:,.1f}",
                f"{one.gain:.2f}",
                f"{float(one.advice['gain_of_doubling']):.2f}",
            ]
            for one in found
        ],
        figures=[
            Figure(
                what=f"{one.what}: what was said, away from what was measured",
                value=100 * one.error,
                wanted=100 * WITHIN,
                sense="at most",
                unit="%",
            )
            for one in found
        ],
    )


if __name__ == "__main__":
    main(run)
