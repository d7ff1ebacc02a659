"""BullMQ, a job queue for Node, in a folder of its own: how fast it is on a Redis server of ours."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from bench.crawlers import HERE, WORK

PACKAGES = ("bullmq@6.7.0", "ioredis@6.0.0")
TIMEOUT_SECONDS = 600.0


class BullRates(NamedTuple):
    """Jobs per second of one client."""

    added_per_second: float
    processed_per_second: float


def measure_bullmq(url: str, *, jobs: int, concurrency: int) -> BullRates:
    """Add and process so many jobs; raises OSError when Node is not there."""
    folder = _install()
    port = str(urlsplit(url).port)
    command = ["node", str(HERE / "bullmq.js"), port, str(jobs), str(concurrency)]
    result = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS)
    return BullRates(**json.loads(result.stdout.splitlines()[-1]))


def _install() -> Path:
    folder = WORK / "bullmq"
    marker = folder / "installed.txt"
    wanted = " ".join(PACKAGES)
    if not marker.exists() or marker.read_text() != wanted:
        if shutil.which("node") is None or shutil.which("npm") is None:
            raise OSError("node and npm are missing: install them with `sudo apt-get install nodejs npm`")
        print(f"installing BullMQ into {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}\n')
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent", *PACKAGES], cwd=folder, check=True)
        marker.write_text(wanted)
    return folder
