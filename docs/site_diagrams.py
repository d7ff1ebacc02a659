"""Diagrams of the documents, drawn at build: mermaid's text in, SVG files out, by mermaid itself in Chromium.

Each is drawn once, light and dark, and kept under the hash of what it is made of: a build draws only what has changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

_DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
THEMES = {"light": "neutral", "dark": "dark"}
_DRAW = """async ([text, theme, id]) => {
  const plain = {htmlLabels: false, fontFamily: "sans-serif"};
  mermaid.initialize({startOnLoad: false, theme, ...plain, flowchart: plain});
  return (await mermaid.render(id, text)).svg;
}"""


def with_pictures(text: str, *, folder: str, names: dict[str, str]) -> str:
    """A page with a picture for each diagram; the diagrams are noted in names, file by file."""

    def picture(found: re.Match[str]) -> str:
        name = hashlib.blake2b(found[1].encode(), digest_size=8).hexdigest()
        names[name] = found[1]
        words = " ".join(re.findall(r"[A-Za-z]{3,}", found[1]))[:120]
        return "\n\n".join(f"![{words}]({folder}/{name}-{theme}.svg#only-{theme}){{ .diagram }}" for theme in THEMES)

    return _DIAGRAM.sub(picture, text)


def draw(diagrams: dict[str, str], *, to: Path, kept: Path, script: Path) -> None:
    """Write the SVG files of all diagrams."""
    to.mkdir(parents=True, exist_ok=True)
    kept.mkdir(parents=True, exist_ok=True)
    missing = [name for name in diagrams if not all((kept / f"{name}-{theme}.svg").exists() for theme in THEMES)]
    if missing:
        _draw_anew({name: diagrams[name] for name in missing}, kept=kept, script=script)
    for name in diagrams:
        for theme in THEMES:
            shutil.copy(kept / f"{name}-{theme}.svg", to)


def _draw_anew(diagrams: dict[str, str], *, kept: Path, script: Path) -> None:
    from playwright.sync_api import Error, sync_playwright  # a second to import, and most builds draw nothing

    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None or not script.exists():
        raise SystemExit("docs: mermaid draws diagrams in Chromium: sudo apt-get install chromium npm, then make docs")
    with sync_playwright() as playwright:
        # Chromium's sandbox cannot be set up by root, and needs none for texts of our own.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        page = browser.new_page()
        page.add_script_tag(path=script)
        for name, text in diagrams.items():
            for theme, colours in THEMES.items():
                try:
                    drawn = page.evaluate(_DRAW, [text, colours, f"d{name}"])
                except Error as error:
                    first = text.strip().splitlines()[:2]
                    raise SystemExit(f"docs: mermaid cannot draw {first}: {error}") from None
                (kept / f"{name}-{theme}.svg").write_text(_standing_alone(drawn), encoding="utf-8")
        browser.close()


def _standing_alone(svg: str) -> str:
    """An SVG that a browser shows as a picture: with a size of its own."""
    box = re.search(r'viewBox="[-\d.]+ [-\d.]+ ([\d.]+) ([\d.]+)"', svg)
    size = f'width="{box[1]}" height="{box[2]}"' if box else ""
    return re.sub(r'<svg ([^>]*?)width="100%"', rf"<svg \1{size}", svg, count=1)


def check_own(svgs: Iterable[Path]) -> list[str]:
    """Pictures that would fetch something when they are shown."""
    calls = re.compile(r"(?:href|src)=\"https?:|url\(https?:|@import")
    return [f"{path.name} fetches from another host" for path in svgs if calls.search(path.read_text(encoding="utf-8"))]
