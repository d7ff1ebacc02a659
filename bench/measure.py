"""Run a program and measure what it cost."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

TIMEOUT_SECONDS = 3600.0


class Cost(NamedTuple):
    """What one run took: the time of all its processes together, the memory of the largest."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def run_measured(command: Sequence[str], *, folder: Path, environment: Mapping[str, str] | None = None) -> Cost:
    """Run to the end, output into `output.log` of the folder; a failure ends the benchmark with the log's tail."""
    log = folder / "output.log"
    with log.open("wb") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | (environment or {}), stdout=output, stderr=subprocess.STDOUT
        )
        watchdog = threading.Timer(TIMEOUT_SECONDS, process.kill)
        watchdog.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        finally:
            watchdog.cancel()
        seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise SystemExit(f"{command[0]} failed with {process.returncode}:\n{tail}")
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
