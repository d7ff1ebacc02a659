"""The page's own arithmetic and its only way to make elements, asked in a real Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser
from stage import Stage

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def server(stage: Stage) -> Iterator[str]:
    stage.crawl("shop-1")
    with stage.serving() as url:
        yield url


@pytest.fixture(scope="module")
def ask(server: str, browser: Browser) -> Iterator[Ask]:
    """Calls a function of a module with these arguments."""
    page = browser.new_page()
    page.goto(server)

    def call(module: str, function: str, *arguments: object) -> object:
        code = "async ([module, name, given]) => (await import(`/static/${module}`))[name](...given)"
        return page.evaluate(code, [module, function, list(arguments)])

    yield call
    page.close()


def test_percentiles_lie_within_their_bucket(ask: Ask) -> None:
    buckets = [0.1, 0.5, 1.0]
    assert ask("points.js", "percentile", [0, 10, 0, 0], buckets, 0.5) == pytest.approx(0.3)
    assert ask("points.js", "percentile", [5, 5, 0, 0], buckets, 0.5) == pytest.approx(0.1)
    assert ask("points.js", "percentile", [0, 0, 0, 4], buckets, 0.99) == 1.0
    assert ask("points.js", "percentile", [0, 0, 0, 0], buckets, 0.5) is None


def test_axes_end_at_round_numbers(ask: Ask) -> None:
    assert [ask("charts.js", "roundUp", value) for value in (0, 0.3, 7, 10, 11, 230)] == [1, 0.5, 10, 10, 20, 250]


def test_paths_name_their_view(ask: Ask) -> None:
    def route(path: str, query: str = "") -> object:
        return ask("routes.js", "routeOf", {"pathname": path, "search": query})

    assert route("/") == {"view": "crawls"}
    assert route("/crawls/a%20b", "?tab=dead") == {"view": "crawl", "id": "a b", "tab": "dead"}
    assert route("/crawls/a/why", "?url=x") == {"view": "why", "id": "a", "url": "x"}
    assert route("/schedules") == {"view": "schedules"}
    assert route("/schedules/a%20b/") == {"view": "schedule", "name": "a b"}
    assert route("/elsewhere") == {"view": "none"}
    assert route("/crawls/%E0%A4%A")["view"] == "crawl"


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("30 6 * * mon-fri", "Monday to Friday at 06:30"),
        ("0 6,18 * * *", "every day at 06:00 and 18:00"),
        ("5 0 * * 0,3", "Sunday and Wednesday at 00:05"),
        ("0 3 1 * *", "on day 1 of each month at 03:00"),
        ("0 3 L * *", "on the last day of each month at 03:00"),
        ("*/15 * * * 6", "every 15 minutes, Saturday"),
        ("10 */6 * * *", "every 6 hours at minute 10"),
        ("@hourly", "every hour"),
    ],
)
def test_says_cron_expressions_in_words(ask: Ask, cron: str, words: str) -> None:
    assert ask("schedule_words.js", "whenInWords", {"cron": cron, "every": 0}) == words


@pytest.mark.parametrize(
    "cron",
    [
        "*/7 * * * *",
        "0 3 31 * *",
        "0 3 1 * mon",
        "0 3 * 2 *",
        "0-30 6 * * *",
        "0 6 * * mon#2",
        "0 6 * * fri-mon",
        "@yearly",
    ],
)
def test_a_cron_expression_without_plain_words_is_shown_as_it_is(ask: Ask, cron: str) -> None:
    assert ask("schedule_words.js", "whenInWords", {"cron": cron, "every": 0}) == cron


def test_says_intervals_in_their_largest_unit(ask: Ask) -> None:
    said = [
        ask("schedule_words.js", "whenInWords", {"cron": "", "every": every}) for every in (45, 5400, 3600, 172_800)
    ]
    assert said == ["every 45 seconds", "every 90 minutes", "every hour", "every 2 days"]


@pytest.mark.parametrize(
    "attributes",
    [
        {"href": "javascript:alert(1)"},
        {"href": " javascript:alert(1)"},
        {"href": "//elsewhere.test/"},
        {"href": "/\\elsewhere.test/"},
        {"href": "data:text/html,x"},
        {"onclick": "alert(1)"},
        {"style": "color: red"},
        {"src": "https://elsewhere.test/"},
    ],
)
def test_refuses_attributes_that_could_run_or_load_something(ask: Ask, attributes: dict[str, str]) -> None:
    with pytest.raises(Exception, match="is not set from here"):
        ask("dom.js", "h", "a", attributes)
