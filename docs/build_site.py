"""Builds the site of the documentation into .site/html: `python docs/build_site.py`. Any finding fails the build."""

from __future__ import annotations

import logging
import shutil
import sys
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

import site_diagrams
import site_pages
from site_checks import site_findings
from site_pages import ROOT

SITE = ROOT / ".site"
SCRIPT = ROOT / ".venv" / "site_tools" / "node_modules" / "mermaid" / "dist" / "mermaid.min.js"


def collect(folder: Path) -> None:
    """All pages of the site in one folder, diagrams as pictures."""
    shutil.rmtree(folder, ignore_errors=True)
    diagrams: dict[str, str] = {}
    for source in site_pages.sources():
        there = folder / site_pages.place(source)
        there.parent.mkdir(parents=True, exist_ok=True)
        if there.suffix == ".md":
            up = "/".join([".."] * len(there.relative_to(folder).parent.parts) + ["images", "diagrams"])
            text = site_diagrams.with_pictures(site_pages.page(source), folder=up, names=diagrams)
            there.write_text(text, encoding="utf-8")
        else:
            shutil.copy(ROOT / source, there)
    (folder / site_pages.EXAMPLES).write_text(site_pages.examples_page(), encoding="utf-8")
    pictures = folder / "images" / "diagrams"
    site_diagrams.draw(diagrams, to=pictures, kept=SITE / "diagrams", script=SCRIPT)
    if wrong := site_diagrams.check_own(pictures.glob("*.svg")):
        raise SystemExit("docs: " + "; ".join(wrong))


def main() -> int:
    """Collect, build, check; the return code says whether all is well."""
    collect(SITE / "pages")
    logging.basicConfig(level=logging.WARNING, format="docs: %(message)s", stream=sys.stderr)
    try:
        build(load_config(str(ROOT / "mkdocs.yml"), nav=site_pages.navigation(), strict=True))
    except Abort as error:
        sys.stderr.write(f"docs: {error}\n")
        return 1
    found = site_findings(SITE / "html")
    for line in found:
        sys.stderr.write(f"docs: {line}\n")
    if found:
        return 1
    number = len(list((SITE / "html").rglob("*.html")))
    sys.stdout.write(f"docs: {number} pages in .site/html, open .site/html/index.html\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
