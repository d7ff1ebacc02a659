"""`make bench`: all parts one after the other; each may be run alone, `python -m bench.crawl`."""

from __future__ import annotations

import subprocess
import sys

PARTS = (
    "crawl",
    "growth",
    "soak",
    "fleet",
    "redis_frontier",
    "exits",
    "postgres",
    "archive",
    "pace",
    "robots",
    "headers",
    "hosts",
)


def main() -> None:
    for part in PARTS:
        print(f"== {part}", flush=True)
        subprocess.run([sys.executable, "-m", f"bench.{part}"], check=True)


if __name__ == "__main__":
    main()
