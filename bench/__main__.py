"""`make bench`: shoal against Scrapy, the cost of a task as the crawl grows, a worker's memory over a long crawl."""

from __future__ import annotations

import subprocess
import sys


def main() -> None:
    for part in ("crawl", "growth", "soak"):
        print(f"== {part}", flush=True)
        subprocess.run([sys.executable, "-m", f"bench.{part}"], check=True)


if __name__ == "__main__":
    main()
