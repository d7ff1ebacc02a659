"""Pictures of the terminal for the documents: `make screenshots` writes them to docs/images/."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from command_line import Folder
from terminal_pictures import WIDTH, frames_of, svg_of

from shoal.testing.sites.site_process import SiteProcess

pytestmark = pytest.mark.full

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
PRODUCTS = 120
RUN = "shoal run books.py --workers 3 -o books.csv"
PROMPT = f"\x1b[32m$\x1b[0m {RUN}"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def test_pictures_of_a_run_show_the_crawl_and_its_summary(
    folder: Folder, site: SiteProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = IMAGES if os.environ.get("SHOAL_SCREENSHOTS") else folder.path
    monkeypatch.delenv("SHOAL_SCREENSHOTS", raising=False)
    folder.spider(site.url, rate="40/s")
    shown = folder.on_terminal(*RUN.split()[1:], columns=WIDTH)
    # As readers would see it: where they run it, of the site of the tutorial.
    shown = shown.replace(f"{sys.executable} -m shoal", "shoal").replace(site.url.split("/")[2], "127.0.0.1:8000")
    *frames, end = frames_of(shown)
    running = [frame for frame in frames if "in flight" in frame]
    live = running[len(running) * 3 // 4]
    plain = COLOURS.sub("", live)
    assert "books-1" in plain
    assert "queued" in plain
    assert "books-1 finished" in COLOURS.sub("", end)
    assert str(folder.path) not in shown
    pictures = {"terminal-live.svg": [PROMPT, live], "terminal-summary.svg": [PROMPT, end]}
    for name, parts in pictures.items():
        (into / name).write_text(svg_of(parts, title="shoal run"), encoding="utf-8")
        text = (into / name).read_text(encoding="utf-8")
        assert "books-1" in text
        assert not re.search(r"(?:href|src)=\"https?:|url\(https?:|url\(\"https?:|@import", text)
