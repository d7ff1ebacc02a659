"""The site that the benchmarks crawl: static pages of 16 kB with 32 links each, the same on every machine."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

TEXT = (
    "harbour lantern archive orchard compass winter atlas tide garden paper river station signal window market "
    "measure letter season engine bridge shelter number colour distance evening reason village copper silver "
    "north south above under between against during without because although however therefore a an the of to in "
    "for on with by from at is was are were be been has had it its this that these those and or but not which who "
    "every several many few other another first second last small large early late quiet bright narrow open"
)
WORDS = TEXT.split()
SECTION_PAGES = 200
ROBOTS = """\
User-agent: *
Disallow: /account/
Disallow: /search
Disallow: /*?sort=
Allow: /account/help

User-agent: GreedyBot
Disallow: /
"""


@dataclass(frozen=True, kw_only=True)
class SitePlan:
    """What is generated. Without a `base` every link is relative, so that a copy under another path links to itself.

    `manner`: "article", running text; "portal", what large sites send: scripts, styles, drawings, deep nesting."""

    pages: int = 20_000
    page_bytes: int = 16 * 1024
    links: int = 32
    base: str = ""
    seed: int = 1
    manner: str = "article"

    def path(self, number: int) -> str:
        return f"section-{number // SECTION_PAGES:03d}/page-{number:06d}.html"

    def targets(self, number: int) -> list[int]:
        """The pages that a page links to: its two children in a tree, so that all are reachable, and any others."""
        children = [child for child in (2 * number + 1, 2 * number + 2) if child < self.pages]
        draw = random.Random(f"{self.seed}/links/{number}")
        return children + [draw.randrange(self.pages) for _ in range(self.links - len(children))]


def build_site(plan: SitePlan, *, folder: Path) -> bool:
    """Write the site unless this very one is there already; says whether it had to."""
    manifest = folder / "manifest.json"
    if stored_plan(folder) == plan:
        return False
    shutil.rmtree(folder, ignore_errors=True)
    for first in range(0, plan.pages, SECTION_PAGES):
        (folder / plan.path(first)).parent.mkdir(parents=True, exist_ok=True)
    for number in range(plan.pages):
        (folder / plan.path(number)).write_text(page_html(plan, number), encoding="ascii")
    (folder / "robots.txt").write_text(ROBOTS)
    manifest.write_text(json.dumps(asdict(plan)))
    return True


def stored_plan(folder: Path) -> SitePlan | None:
    """The plan of the site in this folder."""
    manifest = folder / "manifest.json"
    return SitePlan(**json.loads(manifest.read_text())) if manifest.exists() else None


def page_html(plan: SitePlan, number: int) -> str:
    """One page of the site, as exactly as many bytes as the plan says."""
    draw = random.Random(f"{plan.seed}/page/{number}")
    anchors = [_anchor(plan, number, target, draw=draw) for target in plan.targets(number)]
    return MANNERS[plan.manner](plan, number, anchors, draw)


def _article(plan: SitePlan, number: int, anchors: list[str], draw: random.Random) -> str:
    navigation = "".join(f"<li>{anchor}</li>" for anchor in anchors[:6])
    related = "".join(f'<li class="related">{anchor}</li>' for anchor in anchors[-8:])
    title = f"Page {number}: {_words(draw, 4)}"
    head = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="description" content="{_words(draw, 20)}">\n'
        '<link rel="stylesheet" href="/static/site.css">\n<script src="/static/site.js" defer></script>\n</head>\n'
        f'<body>\n<header class="site"><nav><ul>{navigation}</ul></nav></header>\n'
        f'<main id="content">\n<h1>{title}</h1>\n'
    )
    tail = f'</main>\n<aside><h2>Related</h2><ul>{related}</ul></aside>\n<footer class="site">'
    end = "</footer>\n</body>\n</html>\n"
    body = _body(draw, anchors[6:-8], room=plan.page_bytes - len(head) - len(tail) - len(end))
    return head + body + tail + end


def _body(draw: random.Random, anchors: list[str], *, room: int) -> str:
    """Paragraphs of running text with the anchors spread over them, exactly as long as the room."""
    parts = []
    size = 0
    waiting = list(anchors)
    share = room / (len(anchors) + 1)
    while size < room - 700 or waiting:
        anchor = ""
        if waiting and size >= share * (len(anchors) - len(waiting)):
            anchor = f"{waiting.pop()} "
        inner = f"{_words(draw, 18)} <em>{_words(draw, 2)}</em> {anchor}{_words(draw, 24)} "
        part = (
            f'<div class="block"><h2>{_words(draw, 3)}</h2>\n<p>{inner}<strong>{_words(draw, 2)}</strong>.</p></div>\n'
        )
        parts.append(part)
        size += len(part)
    filler = room - size - len("<p></p>")
    if filler < 0:
        raise ValueError("the links of a page do not fit into its size")
    parts.append(f"<p>{_words(draw, filler)[:filler]}</p>")
    return "".join(parts)


def _anchor(plan: SitePlan, number: int, target: int, *, draw: random.Random) -> str:
    path = plan.path(target)
    relative = path.partition("/")[2] if target // SECTION_PAGES == number // SECTION_PAGES else f"../{path}"
    style = draw.random()
    if not plan.base or style < 0.25:
        href = relative
    elif style < 0.5:
        href = f"{plan.base}/{path}"
    else:
        href = f"/{path}"
    return f'<a class="link" href="{href}">{_words(draw, 3)}</a>'


def _words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(WORDS, k=count))


def _portal(plan: SitePlan, number: int, anchors: list[str], draw: random.Random) -> str:
    """A third of it scripts and styles, cards with drawings, nested deep, and comments up to the wanted size."""
    title = f"Page {number}: {_words(draw, 4)}"
    head = (
        f'<!doctype html>\n<html lang="en" class="no-js">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f'<meta property="og:title" content="{title}">\n<meta name="description" content="{_words(draw, 24)}">\n'
        f"<style>{_rules(draw, plan.page_bytes // 8)}</style>\n<script>{_state(draw, plan.page_bytes // 5)}</script>\n"
        '</head>\n<body class="page page--detail" data-theme="light">\n'
    )
    menu = "".join(f'<li class="menu__item" role="none">{anchor}</li>' for anchor in anchors[:80])
    cards = "".join(_card(draw, anchor) for anchor in anchors[80:])
    top = f'<header class="header"><nav class="menu"><ul role="menubar">{menu}</ul></nav></header>\n<h1>{title}</h1>\n'
    end = "</body>\n</html>\n"
    body = f"{head}{top}<main><div class=grid><div class=grid__inner>{cards}</div></div>"
    tail = f"</main>\n<script>{_state(draw, 2000)}</script>\n{end}"
    room = plan.page_bytes - len(body) - len(tail) - len("<section></section>")
    if room < 0:
        raise ValueError("the links of a page do not fit into its size")
    return f"{body}<section>{_comments(draw, room)}</section>{tail}"


def _card(draw: random.Random, anchor: str) -> str:
    name = draw.choice(WORDS)
    return (
        f'<article class="card card--{name}" data-id="{draw.randrange(10**9)}" data-track="{name}:list:{name}">'
        f'<div class="card__media"><picture><source srcset="/img/{name}-2x.webp 2x" type="image/webp">'
        f'<img class="card__image" src="/img/{name}.jpg" alt="{_words(draw, 3)}" width="320" loading="lazy">'
        f'</picture></div><div class="card__body"><div class="card__head"><span class="badge">{name}</span>'
        f'<h3 class="card__title">{anchor}</h3></div><p class="card__text">{_words(draw, 14)}.</p>'
        f'<div class="card__foot"><button type="button" class="button" aria-label="save">{_drawing(draw)}</button>'
        f'<time datetime="2026-01-{draw.randrange(10, 29)}">{draw.randrange(2, 23)} h</time></div></div></article>\n'
    )


def _drawing(draw: random.Random) -> str:
    points = " ".join(f"L{draw.randrange(24)}.{draw.randrange(10)} {draw.randrange(24)}" for _ in range(12))
    return f'<svg viewBox="0 0 24 24" width="24" height="24" aria-hidden="true"><path d="M0 0 {points}z"/></svg>'


def _rules(draw: random.Random, size: int) -> str:
    rule = ".{0}__{1}>.{1}:hover{{margin:{2}px auto;color:#{2:03d};display:flex}}"
    return _filled(lambda: rule.format(draw.choice(WORDS), draw.choice(WORDS), draw.randrange(100, 999)), size)


def _state(draw: random.Random, size: int) -> str:
    entry = 'window.__state.push({{"id":{0},"slug":"{1}","tags":["{2}","<b>{1}</b>"],"score":0.{0}}});'
    return _filled(lambda: entry.format(draw.randrange(10**6), draw.choice(WORDS), draw.choice(WORDS)), size)


def _comments(draw: random.Random, room: int) -> str:
    """Comments as readers leave them, exactly as long as the room."""
    comments = _filled(lambda: f'<div class="comment"><p>{_words(draw, 22)}</p></div>', max(0, room - 300))
    return comments + _words(draw, room)[: room - len(comments)]


def _filled(make: Callable[[], str], size: int) -> str:
    parts: list[str] = []
    length = 0
    while length < size:
        parts.append(make())
        length += len(parts[-1])
    return "".join(parts)


MANNERS = {"article": _article, "portal": _portal}
