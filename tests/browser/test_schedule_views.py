"""Schedules in a real browser: when each runs and how its runs went, run at once, paused and resumed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from console import Errors
from playwright.sync_api import Locator, Page, expect
from stage import Stage
from test_hostile_text import MARKUP, QUOTES, SCRIPT_LINK, check

from shoal.duties.schedules.config import Schedule, Timing
from shoal.duties.schedules.orders import Notes, ScheduledRun, ScheduleState

pytestmark = pytest.mark.full

SPIDER = """
from shoal import Spider

class Quick(Spider):
    start = ["http://127.0.0.1:9/never"]

    def parse(self, page):
        return None
"""
SCHEDULES = """
[[schedules]]
name = "rare"
spider = "quick.py"
every = "3650d"
settings = { max_attempts = 1, allow_private = true }

[[schedules]]
name = "weekdays"
spider = "quick.py"
cron = "30 6 * * mon-fri"
timezone = "Europe/Berlin"
jitter = "10m"
overlap = "queue"
"""
TOKENS = {"SHOAL_TOKEN": "sesame-sesame-sesame", "SHOAL_READER_TOKEN": "look-look-look-look"}


@pytest.fixture(scope="module")
def server(stage: Stage) -> Iterator[str]:
    """A coordinator that starts the runs of two schedules."""
    spiders = stage.folder / "spiders"
    spiders.mkdir()
    (spiders / "quick.py").write_text(SPIDER)
    (stage.folder / "shoal.toml").write_text(SCHEDULES)
    with stage.serving("--spiders", "spiders") as url:
        yield url


def row_of(page: Page, schedule: str) -> Locator:
    table = page.get_by_role("table", name="Schedules, by name")
    return table.get_by_role("row").filter(has=page.get_by_role("link", name=schedule, exact=True))


def test_lists_when_each_schedule_runs(server: str, page: Page) -> None:
    page.goto(server)
    page.get_by_role("link", name="Schedules").click()
    expect(page).to_have_title("Schedules · shoal")
    expect(page.get_by_role("link", name="Schedules")).to_have_attribute("aria-current", "page")
    weekdays = row_of(page, "weekdays")
    expect(weekdays).to_contain_text("Monday to Friday at 06:30")
    expect(weekdays).to_contain_text("30 6 * * mon-fri")
    expect(weekdays).to_contain_text("up to 10 min later")
    expect(weekdays).to_contain_text(re.compile(r"Europe/Berlin\d{4}-\d\d-\d\d 06:(3\d|40)"))
    expect(weekdays).to_contain_text("none yet")
    expect(row_of(page, "rare")).to_contain_text("every 3650 days")


def test_runs_one_now_and_leads_to_its_crawl_and_its_history(server: str, page: Page) -> None:
    page.goto(f"{server}/schedules")
    # The coordinator knows it: a run is started at its next look.
    expect(row_of(page, "rare")).to_contain_text("waits")
    page.get_by_role("button", name="Run now rare").click()
    dialog = page.get_by_role("dialog", name="Run rare now?")
    expect(dialog).to_contain_text("A run of quick.py begins within seconds")
    dialog.get_by_role("button", name="Run now").click()
    expect(dialog).to_be_hidden()
    ended = re.compile("finished|failed")
    expect(row_of(page, "rare").locator(".badge").nth(1)).to_have_text(ended)
    row_of(page, "rare").get_by_role("link", name="rare").click()
    expect(page.get_by_role("heading", name="rare")).to_be_visible()
    runs = page.get_by_role("table", name="Runs, newest first").get_by_role("row")
    expect(runs.nth(1)).to_contain_text(ended)
    expect(runs.nth(1)).to_contain_text(re.compile("output: .*shoal-logs"))
    runs.nth(1).get_by_role("link", name="quick-1").click()
    expect(page.get_by_role("heading", name="quick-1")).to_be_visible()


def test_pauses_and_resumes(server: str, page: Page) -> None:
    page.goto(f"{server}/schedules")
    page.get_by_role("button", name="Pause weekdays").click()
    dialog = page.get_by_role("dialog", name="Pause weekdays?")
    expect(dialog).to_contain_text("until somebody resumes it")
    page.keyboard.press("Escape")
    expect(row_of(page, "weekdays")).not_to_contain_text("paused")
    page.get_by_role("button", name="Pause weekdays").click()
    dialog.get_by_role("button", name="Pause the schedule").click()
    expect(row_of(page, "weekdays")).to_contain_text("paused")
    page.goto(f"{server}/schedules/weekdays")
    expect(page.locator("dl.facts")).to_contain_text("Next start–")
    page.get_by_role("button", name="Resume weekdays").click()
    expect(page.get_by_role("heading", name="weekdays")).not_to_contain_text("paused")
    expect(page.locator("dl.facts")).not_to_contain_text("Next start–")


def test_names_a_schedule_that_there_is_none_of(server: str, page: Page, errors: Errors) -> None:
    errors.expect("404")
    page.goto(f"{server}/schedules/raer")
    expect(page.get_by_role("heading", name="Not here")).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text("did you mean 'rare'?")


def test_says_how_to_make_one_and_shows_it_without_a_reload(tmp_path: Path, page: Page) -> None:
    stage = Stage(tmp_path)
    stage.crawls([])
    with stage.serving() as url:
        page.goto(f"{url}/schedules")
        expect(page.get_by_role("main")).to_contain_text("Write [[schedules]] into shoal.toml")
        stage.schedules(Notes(filed={"new": Schedule(name="new", spider="a.py", timing=Timing(every=60))}))
        expect(row_of(page, "new")).to_contain_text("every minute")
        page.close()


def test_readers_see_no_buttons_and_hostile_text_as_text(tmp_path: Path, page: Page, errors: Errors) -> None:
    errors.expect("401")
    stage = Stage(tmp_path)
    run = ScheduledRun(run="1", due=1e9, state="failed", crawl=SCRIPT_LINK, reason=MARKUP, log=MARKUP)
    hostile = Schedule(name=QUOTES, spider=MARKUP, timing=Timing(every=60), arguments={MARKUP: MARKUP})
    stage.schedules(Notes(filed={QUOTES: hostile}, states={QUOTES: ScheduleState(history=(run,))}))
    with stage.serving(environ=TOKENS) as url:
        page.goto(f"{url}/schedules")
        page.get_by_label("Token").fill(TOKENS["SHOAL_READER_TOKEN"])
        page.keyboard.press("Enter")
        table = page.get_by_role("table", name="Schedules, by name")
        expect(table).to_contain_text("<img src=x onerror=")
        expect(table.get_by_role("columnheader", name="Actions")).to_have_count(0)
        expect(page.locator("main button")).to_have_count(0)
        check(page)
        table.get_by_role("link", name=QUOTES).click()
        expect(page.get_by_role("table", name="Runs, newest first")).to_contain_text("<img src=x onerror=")
        expect(page.locator("main button")).to_have_count(0)
        check(page)
        page.close()
