"""Counts what the hot path costs: instructions by valgrind's callgrind, or calls where there is no valgrind."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.guard.hot_path import PARTS, REDIS_PART
from bench.guard.rules import Conditions, Unit
from bench.redis_server import redis_server
from bench.site import SitePlan, build_site

ROOT = Path(__file__).resolve().parents[2]
SMALL, LARGE = 20, 110
TIMEOUT_SECONDS = 900.0
PROGRAM = [sys.executable, "-m", "bench.guard.hot_path"]
# The function of the C library that the program calls at each mark: os.getloadavg().
MARK = "getloadavg"


def has_valgrind() -> bool:
    return shutil.which("valgrind") is not None


def conditions_here() -> Conditions:
    """What the counts of this machine depend on besides shoal's code."""
    # Libraries choose their routines by what the processor can do.
    flags = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    kind = "avx2" if "avx2" in flags else "no avx2"
    return Conditions(
        python=platform.python_version(),
        platform=f"{sys.platform} {platform.machine()} {' '.join(platform.libc_ver())} {kind}",
        sqlite=sqlite3.sqlite_version,
        constraints=hashlib.sha256((ROOT / "constraints.txt").read_bytes()).hexdigest()[:16],
    )


def count(unit: Unit) -> dict[str, list[int]]:
    """The counts of the crawls of `bench.guard.hot_path`: by part, that of the small and that of the large site. The
    part over Redis is left out where there is no redis-server."""
    with tempfile.TemporaryDirectory(prefix="guard") as name, ExitStack() as stack:
        folder = Path(name)
        sites = []
        for pages in (SMALL, LARGE):
            sites.append(str(folder / f"site-{pages}"))
            build_site(SitePlan(pages=pages), folder=Path(sites[-1]))
        redis = stack.enter_context(redis_server(folder / "redis")).url if shutil.which("redis-server") else ""
        if unit == "calls":
            counts = [int(found) for found in json.loads(_run([*PROGRAM, "calls", redis, *sites]))]
        else:
            out = folder / "counts"
            command = ["valgrind", "--tool=callgrind", f"--dump-before={MARK}", f"--callgrind-out-file={out}"]
            _run([*command, *PROGRAM, "instructions", redis, *sites])
            counts = _between_marks(out)
    parts = [*PARTS, *([REDIS_PART] if redis else [])]
    if len(counts) != 2 * len(parts):
        raise SystemExit(f"guard: {len(counts)} counts instead of two for each of {len(parts)} parts")
    return {part: counts[2 * index : 2 * index + 2] for index, part in enumerate(parts)}


def _run(command: list[str]) -> str:
    # Nothing of the caller's environment: settings of shoal and of Python change what is counted.
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "PYTHONHASHSEED": "0",
    }
    ended = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    if ended.returncode:
        tail = "\n".join((ended.stdout + ended.stderr).splitlines()[-20:])
        raise SystemExit(f"guard: the counted program failed with {ended.returncode}:\n{tail}")
    return ended.stdout


def _between_marks(out: Path) -> list[int]:
    """The instructions of each crawl: valgrind writes a file at each mark, every second one at the end of a crawl."""
    counts = []
    while (file := out.with_name(f"{out.name}.{2 * len(counts) + 2}")).exists():
        with file.open(encoding="utf-8", errors="replace") as lines:
            counts.append(next(int(line.split()[1]) for line in lines if line.startswith("totals:")))
    return counts
