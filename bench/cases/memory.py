"""Case H: the memory of a worker, in a long crawl of one host and in a crawl of many hosts with one page each."""

from __future__ import annotations

from pathlib import Path

from bench.case import Case, Figure, Plan
from bench.case_main import main
from bench.crawlers import WORK, fresh_folder
from bench.nginx import free_port, serve
from bench.progress import telling
from bench.site import SECTION_PAGES, SitePlan
from bench.watched import Watched, watch_crawl

BODIES, QUICK_BODIES = 5_000, 1_000
LONG = (10_000, 300_000)
QUICK_LONG = (500, 2_000)
HOSTS, QUICK_HOSTS = 20_000, 300
MOST_GROWTH = 1.05
MIB = 2**20
WHOLE = "whole.txt"  # written last


def run(plan: Plan) -> Case:
    """Both crawls once: memory varies little from run to run."""
    early, late = QUICK_LONG if plan.quick else LONG
    hosts = QUICK_HOSTS if plan.quick else HOSTS
    bodies = QUICK_BODIES if plan.quick else BODIES
    pages, site = SitePlan(pages=bodies), WORK / f"memory-site{'-quick' if plan.quick else ''}"
    if not (site / WHOLE).exists():
        with telling(f"building {bodies:,} pages under {site}"):
            _build_site(pages, site)
    port = free_port()
    # All of 127.0.0.0/8 is this machine.
    with serve(site, port=port, work=WORK / "nginx-memory", address="0.0.0.0", connections=19_000) as address:
        starts = [f"{address}/copy/{copy}/{pages.path(0)}" for copy in range(late // bodies)]
        deep = _crawl("one host", starts, pages=late, address=address, deep=True)
        names = enumerate(host_names(hosts))
        starts = [f"http://{name}:{port}/{pages.path(number % bodies)}" for number, name in names]
        wide = _crawl("many hosts", starts, pages=hosts, address=address, deep=False)
    first, last = deep.at(early), deep.at_the_end(late)
    growth = last.resident_bytes / first.resident_bytes
    return Case(
        letter="H",
        title="memory of a worker",
        how=[
            f"{late:,} pages of 2 kB with 32 links on one host ({bodies:,} files that nginx shows under"
            f" {late // bodies} paths): `shoal run` with one worker and SQLite, 64 requests in flight, robots.txt"
            " obeyed, links by `yield from page.follow`, an item per page.",
            f"{hosts:,} loopback addresses, each a host with a robots.txt to ask for and one page, default settings.",
            "Resident memory of the worker's process, sampled five times a second, up to its end; peak is the kernel's"
            " high-water mark at that moment. CPU is that of all processes of the command.",
        ],
        columns=["crawl", "pages", "resident MiB", "peak MiB", "descriptors", "CPU ms per request", "requests/s"],
        rows=[
            ["one host", f"{early:,}", *map(_mib, first[1:3]), str(first.descriptors), "", ""],
            _row("one host", late, deep, resident=last.resident_bytes),
            _row(f"{hosts:,} hosts", hosts, wide, resident=wide.at_the_end(wide.requests).resident_bytes),
        ],
        figures=[
            Figure(
                what=f"resident memory at {late:,} pages, of that at {early:,}",
                value=growth,
                wanted=MOST_GROWTH,
                sense="at most",
                unit="times",
                bound_by="the caches of SQLite, which a batch fills when most of its links are new",
            )
        ],
    )  # fmt: skip


def _build_site(pages: SitePlan, folder: Path) -> None:
    """Pages with the links of the usual site and next to no text, so that a long crawl takes minutes."""
    for number in range(pages.pages):
        page = folder / pages.path(number)
        if number % SECTION_PAGES == 0:
            page.parent.mkdir(parents=True, exist_ok=True)
        links = "".join(f'<li><a href="../{pages.path(target)}">{target}</a></li>' for target in pages.targets(number))
        page.write_text(f"<!doctype html><title>Page {number}</title><ul>{links}</ul>", encoding="ascii")
    (folder / WHOLE).touch()


def host_names(count: int) -> list[str]:
    """Loopback addresses: each is a host of its own, with ports of its own."""
    return [f"127.{1 + number // 62_500}.{number // 250 % 250}.{1 + number % 250}" for number in range(count)]


def _crawl(name: str, starts: list[str], *, pages: int, address: str, deep: bool) -> Watched:
    folder = fresh_folder("memory-run")
    (folder / "starts.txt").write_text("\n".join(starts))
    environment = {"BENCH_STARTS": str(folder / "starts.txt"), "BENCH_DEEP": "1" if deep else ""}
    print(f"{name}: {pages:,} pages", flush=True)
    found = watch_crawl("memory_spider.py", environment=environment, address=address, pages=pages, folder=folder)
    for share in (0.03, 0.1, 0.25, 0.5, 0.75, 1.0):
        sample = found.at(int(share * found.requests))
        print(f"  {sample.requests:>9,} requests: {sample.resident_bytes / MIB:.1f} MiB", flush=True)
    return found


def _row(name: str, pages: int, found: Watched, *, resident: int) -> list[str]:
    return [
        name,
        f"{pages:,}",
        _mib(resident),
        _mib(found.peak_bytes),
        str(found.most_descriptors),
        f"{found.cpu_per_request:.3f}",
        f"{found.requests / found.seconds:,.0f}",
    ]


def _mib(size: int) -> str:
    return f"{size / MIB:.1f}"


if __name__ == "__main__":
    main(run)
