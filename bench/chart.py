"""A chart of all cases as one SVG file: a group of horizontal bars per case, shoal's in colour, and its ratio."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from xml.sax.saxutils import escape

from bench.case import Bar, Case

WIDTH = 860
LABEL_WIDTH = 330
VALUE_WIDTH = 170
BAR_HEIGHT = 18
BAR_STEP = 24
TITLE_HEIGHT = 44
MARGIN = 16

# Background and text change together, so that it can be read wherever it is shown.
STYLE = """
  .ground { fill: #ffffff } text { fill: #24292f; font: 13px system-ui, sans-serif } .title { font-weight: 600 }
  .unit { fill: #57606a } .peer { fill: #afb8c1 } .ours { fill: #0f766e }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117 } text { fill: #e6edf3 }
    .unit { fill: #8b949e } .peer { fill: #484f58 } .ours { fill: #2dd4bf }
  }
"""


def chart(cases: Sequence[Case]) -> str:
    """The chart of the cases that have bars."""
    parts, top = [], MARGIN
    for case in cases:
        if case.bars:
            parts.append(_group(case, top=top))
            top += TITLE_HEIGHT + BAR_STEP * len(case.bars)
    size = f'width="{WIDTH}" height="{top + MARGIN}" viewBox="0 0 {WIDTH} {top + MARGIN}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>shoal beside its peers</title>\n'
        f'<style>{STYLE}</style>\n<rect class="ground" width="100%" height="100%"/>\n{"".join(parts)}</svg>\n'
    )


def _group(case: Case, *, top: int) -> str:
    title = f'{escape(f"{case.letter}. {case.title}")} <tspan class="unit">{escape(case.bar_unit)}</tspan>'
    lines = [f'<text class="title" x="{MARGIN}" y="{top + 26}">{title}</text>\n']
    longest = max(bar.value for bar in case.bars)
    ours = [bar for bar in case.bars if bar.label.startswith("shoal")]
    for number, bar in enumerate(case.bars):
        # Where none has shoal's name, all are shoal's.
        rival = None if bar in ours or not ours else counterpart(bar, ours)
        lines.append(_bar(bar, rival, longest=longest, top=top + TITLE_HEIGHT + BAR_STEP * number - 4))
    return "".join(lines)


def counterpart(bar: Bar, ours: Sequence[Bar]) -> Bar:
    """The one of shoal's bars that a peer's is compared with: it has the most words in common, or is the first."""
    words = _words(bar)
    return max(ours, key=lambda our: len(words & _words(our)))


def _words(bar: Bar) -> set[str]:
    return set(re.findall(r"\w+", bar.label.lower()))


def _bar(bar: Bar, rival: Bar | None, *, longest: float, top: int) -> str:
    room = WIDTH - LABEL_WIDTH - VALUE_WIDTH - MARGIN
    width = max(1.0, room * bar.value / longest) if longest > 0 else 1.0
    middle = top + BAR_HEIGHT - 5
    ratio = f' <tspan class="unit">shoal {times(rival.value / bar.value)} ×</tspan>' if rival and bar.value else ""
    return (
        f'<text x="{LABEL_WIDTH - 8}" y="{middle}" text-anchor="end">{escape(bar.label)}</text>'
        f'<rect class="{"peer" if rival else "ours"}" x="{LABEL_WIDTH}" y="{top}" width="{width:.1f}"'
        f' height="{BAR_HEIGHT}" rx="2"/>'
        f'<text x="{LABEL_WIDTH + width + 6:.1f}" y="{middle}">{shown(bar.value)}{ratio}</text>\n'
    )


def times(ratio: float) -> str:
    """Rounded down, as the figures beside the tables are: the chart never shows more than was reached."""
    digits = 1 if ratio >= 1 else 2
    return f"{math.floor(round(ratio * 10**digits, 6)) / 10**digits:.{digits}f}"


def shown(value: float) -> str:
    """A value beside its bar: as many digits as can be told apart."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
