"""The wheel as users get it: installed in an empty environment, and run there."""

from __future__ import annotations

import functools
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from release.building import ROOT, run
from release.contents import extras_of
from release.cutting import Refused

BOOKS = 5
SPIDER = """
from shoal import Item, Spider


class Books(Spider):
    start = ["{url}"]
    settings = {{"allow_private": True, "rate": "unlimited"}}

    def parse(self, page):
        yield page.follow("a", self.book)

    def book(self, page):
        yield Item(key=page.url, title=page.text("h1"))
"""


def environment(folder: Path) -> Path:
    """An empty environment; gives its interpreter."""
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin" / "python"


def install(python: Path, what: str, *, pinned: bool = False) -> None:
    """Install into an environment; `pinned`: in the versions that the tests ran with."""
    pins: list[str | Path] = ["-c", ROOT / "constraints.txt"] if pinned else []
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pins, what)


def try_wheel(wheel: Path, folder: Path) -> None:
    """Run the demo and a small crawl from the wheel, without extras."""
    python = environment(folder / "plain")
    install(python, str(wheel))
    shoal, work = python.with_name("shoal"), folder / "work"
    work.mkdir()
    run(shoal, "demo", "--products", "20", "--workers", "2", folder=work)
    with _books(folder / "site") as url:
        (work / "books.py").write_text(SPIDER.format(url=url), encoding="utf-8")
        run(shoal, "run", "books.py", "-o", "books.jsonl", folder=work)
    lines = (work / "books.jsonl").read_text(encoding="utf-8").splitlines()
    titles = sorted(json.loads(line)["title"] for line in lines)
    if titles != [f"Book {number}" for number in range(BOOKS)]:
        raise Refused(f"the crawl from {wheel.name} has {len(titles)} of {BOOKS} items: the wheel lacks something")


def write_sbom(wheel: Path, folder: Path, target: Path) -> int:
    """Write what the wheel with its extras pulls in, as CycloneDX; gives the number of components."""
    python = environment(folder / "extras")
    install(python, f"{wheel}[{','.join(extras_of(wheel))}]", pinned=True)
    # It has served: pip is no part of shoal.
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools")
    run(sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "-o", target, python)
    bom = json.loads(target.read_text(encoding="utf-8"))
    for component in bom["components"]:
        # Where pip found the wheel on this machine is nobody's business.
        component["externalReferences"] = [
            one for one in component.get("externalReferences", []) if not one["url"].startswith("file:")
        ]
    target.write_text(json.dumps(bom, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return len(bom["components"])


@contextmanager
def _books(folder: Path) -> Iterator[str]:
    """A small site on loopback; gives its address."""
    folder.mkdir()
    names = [f"{number}.html" for number in range(BOOKS)]
    (folder / "index.html").write_text("".join(f'<a href="{name}">{name}</a>' for name in names), encoding="utf-8")
    for number, name in enumerate(names):
        (folder / name).write_text(f"<h1>Book {number}</h1>", encoding="utf-8")
    handler = functools.partial(_Silent, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name that it overrides
        """Says nothing."""
