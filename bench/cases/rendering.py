"""Case Q: pages that a browser renders: how many per minute, and what a browser takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bench import renders
from bench.case import Bar, Case, Figure, Plan, spread_of
from bench.case_main import main
from bench.crawlers import WORK
from bench.nginx import free_port, serve
from bench.renders import Rendering

PAGES, QUICK_PAGES = 150, 12
MIB = 2**20
ONE, FOUR, BARE, PLAIN = (
    "shoal, 1 page at once",
    "shoal, 4 at once",
    "Playwright alone, 4 at once",
    "shoal, not rendered",
)
WANTED_PERCENT = 70.0


def run(plan: Plan) -> Case:
    pages = QUICK_PAGES if plan.quick else PAGES
    site = WORK / f"render-site-{pages}"
    renders.build_site(site, pages=pages)
    systems: dict[str, Callable[..., Rendering]] = {
        ONE: partial(renders.by_shoal, at_once=1, name="render-one"),
        FOUR: partial(renders.by_shoal, at_once=4, name="render-four"),
        BARE: partial(renders.by_bare_loop, at_once=4, name="render-bare"),
        PLAIN: partial(renders.by_shoal, at_once=0, name="render-none"),
    }
    runs: dict[str, list[Rendering]] = {name: [] for name in systems}
    with serve(site, port=free_port(), work=WORK / "nginx-render") as address:
        for number in range(1, plan.rounds + 1):
            for name, render in systems.items():
                found = render(f"{address}/", pages=pages)
                runs[name].append(found)
                print(f"round {number}: {name}: {found.per_minute:,.0f} pages/min", flush=True)
    speed = {name: spread_of([one.per_minute for one in found]) for name, found in runs.items()}
    memory = {name: spread_of([one.most_bytes / MIB for one in found]) for name, found in runs.items()}
    rendered = [ONE, FOUR, BARE]
    return Case(
        letter="Q",
        title="pages rendered by a browser",
        how=[
            f"{pages:,} pages whose title, 16 kB of text and {renders.LINKS} links are made by a script that asks for"
            ' the text; with an image each. One worker, `Request(render=Render(wait_for="h1"))`, default settings but'
            " for `rate` and `per_host`; `render_pages` is 1 or, as by default, 4. Each page has a profile of its own.",
            "Beside it a loop of Playwright with the same Chromium and a context per page, without a guard, limits, a"
            " proxy or a queue. And the same pages fetched by shoal without a browser: their scripts do not run.",
            "From start to exit of the command, the browser's start included. Memory is that of all processes of the"
            " browser (proportional set size), the largest of looks half a second apart.",
        ],
        columns=["", "pages", "pages/min", "browser MiB"],
        rows=[
            [name, f"{pages:,}", speed[name].shown(), memory[name].shown() if name in rendered else "-"]
            for name in systems
        ],
        figures=[
            Figure(
                what="pages/min of shoal, of those of Playwright alone",
                value=round(100 * speed[FOUR].median / speed[BARE].median, 1),
                wanted=WANTED_PERCENT,
                sense="at least",
                unit="%",
                bound_by="every request of a page goes through the worker's proxy, past the guard",
            )
        ],
        bars=[Bar(label=name, value=speed[name].median) for name in rendered],
        bar_unit="pages/min",
    )


if __name__ == "__main__":
    main(run)
