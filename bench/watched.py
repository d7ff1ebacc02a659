"""Run `shoal run` with one worker and watch the memory and the descriptors of its processes while it works."""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.crawlers import HERE
from bench.nginx import requests_served

SAMPLE_SECONDS = 0.2


class Sample(NamedTuple):
    """What the worker had when nginx had served so many requests."""

    requests: int
    resident_bytes: int
    peak_bytes: int
    descriptors: int


class Watched(NamedTuple):
    """A crawl that has ended: its samples, and what all its processes took."""

    requests: int
    seconds: float
    cpu_seconds: float
    samples: list[Sample]

    @property
    def peak_bytes(self) -> int:
        return max(sample.peak_bytes for sample in self.samples)

    @property
    def most_descriptors(self) -> int:
        return max(sample.descriptors for sample in self.samples)

    @property
    def cpu_per_request(self) -> float:
        """In milliseconds."""
        return self.cpu_seconds / self.requests * 1000

    def at(self, requests: int) -> Sample:
        """The first sample at which so many requests were served, or the last one."""
        return next((sample for sample in self.samples if sample.requests >= requests), self.samples[-1])

    def at_the_end(self, requests: int) -> Sample:
        """The largest of the samples since so many requests were served: what the end of a crawl takes counts, too."""
        late = [sample for sample in self.samples if sample.requests >= requests]
        return max(late, key=lambda sample: sample.resident_bytes, default=self.samples[-1])


def watch_crawl(spider: str, *, environment: Mapping[str, str], address: str, pages: int, folder: Path) -> Watched:
    """Crawl to the end. A crawl without an item for every page ends the benchmark."""
    command = [sys.executable, "-m", "shoal", "run", str(HERE / spider), "--workers", "1"]
    asked, looks = requests_served(address), 0
    samples: list[Sample] = []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (folder / "output.log").open("wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while process.poll() is None:
                # The status page counts its own visits.
                looks += 1
                requests = requests_served(address) - asked - looks
                with contextlib.suppress(psutil.Error, FileNotFoundError, ProcessLookupError):
                    samples += _sample(process.pid, requests)
                time.sleep(SAMPLE_SECONDS)
        finally:
            process.kill()
            process.wait()
        seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    _check(process.returncode, pages=pages, folder=folder)
    return Watched(
        requests=requests_served(address) - asked - looks - 1,
        seconds=seconds,
        cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        samples=samples,
    )


def _sample(pid: int, requests: int) -> list[Sample]:
    """The worker is the child of the command: before it is there, and when it has ended, there is nothing to see. The
    command itself only waits, and its memory would pass for a worker's that has shrunk."""
    workers = [(process.memory_info().rss, process) for process in psutil.Process(pid).children(recursive=True)]
    if not workers:
        return []
    resident, worker = max(workers, key=lambda pair: pair[0])
    status = Path(f"/proc/{worker.pid}/status").read_text()
    # A process that has ended and was not yet waited for has no memory.
    if "VmHWM:" not in status or not resident:
        return []
    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return [Sample(requests, resident, peak, worker.num_fds())]


def _check(code: int, *, pages: int, folder: Path) -> None:
    with closing(sqlite3.connect(folder / "shoal.db")) as database:
        (found,) = database.execute("SELECT count(*) FROM item").fetchone()
    if code or found != pages:
        raise SystemExit(f"{found:,} of {pages:,} pages, return code {code}: see {folder / 'output.log'}")
