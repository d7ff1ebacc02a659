"""Light and dark, phone width, keyboard only, screen readers: every view in a real Chromium."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from furnished import CRAWL, SCHEDULE, furnish
from playwright.sync_api import Browser, Page, expect
from stage import Stage

from shoal.testing.servers.programs import missing

pytestmark = pytest.mark.full

VIEWS = {
    "crawls": "/",
    "overview": f"/crawls/{CRAWL}",
    "workers": f"/crawls/{CRAWL}?tab=workers",
    "hosts": f"/crawls/{CRAWL}?tab=hosts",
    "exits": f"/crawls/{CRAWL}?tab=exits",
    "items": f"/crawls/{CRAWL}?tab=items",
    "dead": f"/crawls/{CRAWL}?tab=dead",
    "rejected": f"/crawls/{CRAWL}?tab=rejected",
    "schedules": "/schedules",
    "schedule": f"/schedules/{SCHEDULE}",
    "why": f"/crawls/{CRAWL}/why?url=https://shop.test/catalogue/0.html",
}
SHOWN = {"exits": ".empty", "overview": ".canvas path"}
AXE = Path(sys.prefix) / "page_tools" / "node_modules" / "axe-core" / "axe.min.js"
PHONE = {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def server(stage: Stage) -> Iterator[str]:
    furnish(stage)
    with stage.serving() as url:
        yield url


def visit(page: Page, server: str, view: str) -> None:
    """Open a view and wait until it has its figures."""
    page.goto(server + VIEWS[view])
    expect(page.locator(f"main {SHOWN.get(view, 'tbody tr')}").first).to_be_visible()


def ground(page: Page) -> str:
    colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return colour


def test_follows_the_system_and_remembers_the_switch(server: str, page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    visit(page, server, "crawls")
    dark = ground(page)
    page.emulate_media(color_scheme="light")
    light = ground(page)
    assert light != dark
    switch = page.get_by_role("button", name="Theme")
    switch.click()
    expect(switch).to_have_text("Theme: light")
    switch.click()
    expect(switch).to_have_text("Theme: dark")
    assert ground(page) == dark
    page.reload()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert ground(page) == dark


def test_fits_a_phone_without_scrolling_sideways(server: str, page: Page) -> None:
    page.set_viewport_size(PHONE)
    for view in VIEWS:
        visit(page, server, view)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], view
        low = page.locator("main button, main .tabs a").evaluate_all(
            "all => all.filter(one => one.getClientRects().length && one.getBoundingClientRect().height < 24).length"
        )
        assert low == 0, view


def test_everything_is_reached_by_keyboard(server: str, page: Page) -> None:
    visit(page, server, "crawls")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    press_until(page, "Pause shop-2")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    press_until(page, "Resume shop-2")
    page.keyboard.press("Enter")
    press_until(page, "Cancel shop-2")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Cancel shop-2")).to_be_focused()


def press_until(page: Page, name: str) -> None:
    """Tab on until the button with this name has the focus."""
    button = page.get_by_role("button", name=name)
    expect(button).to_be_visible()
    for _ in range(40):
        if button.evaluate("one => one === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{name} is not reached by Tab")


def test_charts_are_read_by_arrow_keys(server: str, page: Page) -> None:
    visit(page, server, "overview")
    chart = page.locator(".canvas").first
    chart.focus()
    now = chart.get_attribute("aria-label")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(chart).not_to_have_attribute("aria-label", now or "")
    expect(chart.locator(".cursor")).to_have_count(1)


# Slow because axe-core reads every view, in light and in dark: no other test sees contrast or missing labels.
def test_has_no_serious_barrier(server: str, browser: Browser) -> None:
    if not AXE.is_file():
        missing("npm")
    # The page's own policy lets no other script in, also not this one: it is left out for the visit.
    context = browser.new_context(bypass_csp=True, reduced_motion="reduce")
    page = context.new_page()
    page.add_init_script(path=AXE)
    found = []
    for view in VIEWS:
        page.emulate_media(color_scheme="light")
        visit(page, server, view)
        found += barriers(page, view)
        page.emulate_media(color_scheme="dark")
        found += barriers(page, f"{view}, dark", only="color-contrast")
    context.close()
    assert found == []


def barriers(page: Page, view: str, *, only: str = "") -> list[tuple[str, str, str]]:
    """What axe-core finds: the view, the rule and the first element."""
    options = {"resultTypes": ["violations"], **({"runOnly": [only]} if only else {})}
    # Rows are alike: three of each table are enough.
    where = {"include": "html", "exclude": "tbody tr:nth-child(n + 4)"}
    answer = page.evaluate("([where, options]) => axe.run(where, options)", [where, options])
    return [
        (view, problem["id"], problem["nodes"][0]["html"][:200])
        for problem in answer["violations"]
        if problem["impact"] in ("serious", "critical")
    ]
