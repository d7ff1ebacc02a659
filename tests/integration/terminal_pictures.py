"""Pictures of a terminal as SVG: what a command shows while it runs, and at its end."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

WIDTH = 100
# How a live display is drawn anew: the line is cleared, then each line above it.
REDRAWN = re.compile(r"(?:\r?\x1b\[2K(?:\x1b\[1A\x1b\[2K)*)+")
MOVES = re.compile(r"\x1b\[\?\d+[hl]|\x1b\[\d*[A-KST]|\r")
# The font is whatever the reader has: nothing is fetched from another host.
FONT_FACES = re.compile(r"@font-face \{\{.*?\}\}", re.DOTALL)


def frames_of(shown: str) -> list[str]:
    """What stood on the terminal, one display after the other; the last one is what is left at the end."""
    return [frame for part in REDRAWN.split(shown) if (frame := MOVES.sub("", part).strip("\n"))]


def svg_of(parts: Sequence[str], *, title: str) -> str:
    """Texts with colours as a picture of a terminal, one below the other."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for part in parts:
        console.print(Text.from_ansi(part), soft_wrap=True)
    plain = FONT_FACES.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code, ", "")
    return console.export_svg(title=title, theme=DIMMED_MONOKAI, code_format=plain, unique_id="shoal")
