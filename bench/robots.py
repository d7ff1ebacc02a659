"""How fast robots.txt files are read and asked, next to Protego where it is installed: `python -m bench.robots`.

The files are made up, in the sizes and the manner of real ones: most of them short, a few with hundreds of wildcards.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shoal.fetch.robots import Robots, compact

SITE = "https://shop.example"
AGENT = "shoal/0.1"
WORDS = (
    "admin",
    "cart",
    "search",
    "login",
    "account",
    "wp-admin",
    "tag",
    "print",
    "api",
    "private",
    "user",
    "listing",
    "c",
)
NAMES = ("sort", "ref", "q", "page", "utm_source", "color", "filter", "sessionid", "lang")
AGENTS = ("Googlebot", "Bingbot", "GPTBot", "AhrefsBot", "Yandex", "MJ12bot", "CCBot")


class Speed(NamedTuple):
    """Medians over all files."""

    parse_ms: float
    slowest_parse_ms: float
    asked_per_second: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.robots", description=__doc__)
    parser.add_argument("--files", type=int, default=400, help="files to make")
    parser.add_argument("--urls", type=int, default=200, help="URLs to ask each file about")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    dice = random.Random(7)  # the same files on every machine
    files = [make_file(dice) for _ in range(options.files)]
    urls = [make_url(dice) for _ in range(options.urls)]
    sizes = sorted(map(len, files))
    print(f"{len(files)} files of {sizes[0]:,} to {sizes[-1]:,} bytes, half of them below {sizes[len(sizes) // 2]:,}")
    figures = {name: measure(files, urls, reader) for name, reader in readers().items()}
    for name, speed in figures.items():
        print(
            f"{name:8} parse {speed.parse_ms:.3f} ms in the median, {speed.slowest_parse_ms:.2f} ms at most;"
            f" {speed.asked_per_second:,.0f} URLs asked per second"
        )
    if options.json:
        options.json.write_text(json.dumps({name: speed._asdict() for name, speed in figures.items()}, indent=2) + "\n")


def readers() -> dict[str, Callable[[bytes], Callable[[str], bool]]]:
    """What is measured: each turns a file into a question."""
    found: dict[str, Callable[[bytes], Callable[[str], bool]]] = {
        "shoal": lambda body: Robots(compact(body), AGENT).allows
    }
    try:
        protego: Any = importlib.import_module("protego").Protego
    except ImportError:
        print("Protego is left out: pip install protego")
        return found

    def read(body: bytes) -> Callable[[str], bool]:
        parsed = protego.parse(body.decode())
        return lambda url: bool(parsed.can_fetch(url, AGENT))

    return {**found, "protego": read}


def measure(files: Sequence[bytes], urls: Sequence[str], reader: Callable[[bytes], Callable[[str], bool]]) -> Speed:
    parsing, asking = [], []
    for body in files:
        started = time.perf_counter()
        allows = reader(body)
        parsing.append(time.perf_counter() - started)
        started = time.perf_counter()
        for url in urls:
            allows(url)
        asking.append((time.perf_counter() - started) / len(urls))
    return Speed(statistics.median(parsing) * 1e3, max(parsing) * 1e3, 1 / statistics.median(asking))


def make_file(dice: random.Random) -> bytes:
    """A robots.txt: a group for everybody, and often groups for others."""
    lines: list[str] = []
    for agents in (["*"], *([dice.choice(AGENTS)] for _ in range(dice.choice((0, 0, 1, 2, 6))))):
        lines += [f"User-agent: {agent}" for agent in agents]
        rules = min(int(dice.lognormvariate(2.6, 1.1)) + 1, 1500)
        lines += [make_rule(dice) for _ in range(rules)]
        if dice.random() < 0.2:
            lines.append(f"Crawl-delay: {dice.randint(1, 30)}")
        lines.append("")
    return "\n".join([*lines, f"Sitemap: {SITE}/sitemap.xml", ""]).encode()


def make_rule(dice: random.Random) -> str:
    folder = "/".join(dice.choices(WORDS, k=dice.randint(1, 3)))
    kinds = (
        f"/{folder}/",
        f"/{folder}-{dice.randint(1, 999)}",
        f"/*?{dice.choice(NAMES)}=",
        f"/*&{dice.choice(NAMES)}{dice.randint(1, 99)}=",
        f"/{folder}/*/{dice.choice(WORDS)}$",
    )
    field = "Allow" if dice.random() < 0.15 else "Disallow"
    return f"{field}: {dice.choices(kinds, weights=(8, 4, 2, 2, 1))[0]}"


def make_url(dice: random.Random) -> str:
    path = "/".join(dice.choices((*WORDS, "shoes", "blue-shirt-1234", "news", "2026"), k=dice.randint(1, 4)))
    query = f"?{dice.choice(NAMES)}={dice.randint(1, 99)}" if dice.random() < 0.3 else ""
    return f"{SITE}/shop/{path}{query}" if dice.random() < 0.7 else f"{SITE}/{path}{query}"


if __name__ == "__main__":
    main()
