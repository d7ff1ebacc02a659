"""Kinds of pages that say nothing new are found out; kinds that do are left alone, however many there are."""

from __future__ import annotations

from shoal.fetch.base import Response
from shoal.journey.equal_pages import LANE_FACTOR, PROBE_EVERY, SAMPLE_EVERY, EqualPages
from shoal.model import Task
from shoal.settings.table import Settings
from shoal.spider.page import Page
from shoal.urls.canonical import UrlRules

LIMIT = 20
# The first page says something new, and only the one a few pages later is looked at again.
LEFT = LIMIT + SAMPLE_EVERY
RULES = UrlRules(Settings(allow=("*",)))


def page_at(url: str, body: str, *, is_parsed: bool = True, status: int = 200) -> Page:
    link = RULES.resolve(url)
    task = Task(url=link.url, key=link.key, lane=link.lane, shape=link.shape, parent=1)
    headers = {"content-type": "text/html"}
    response = Response(url=url, status=status, headers=headers, body=body.encode(), wire_size=0, elapsed=0.0)
    page = Page(response, task=task, resolver=RULES)
    if is_parsed:
        page.text("title")
    return page


def left_after(repeats: EqualPages, pages: list[Page]) -> int | None:
    """After how many pages the next one is given up."""
    for number, page in enumerate(pages):
        if repeats.exhausted(page.task):
            return number
        repeats.note(page)
    return None


def test_equal_pages_of_one_shape_are_given_up_at_the_limit() -> None:
    pages = [page_at(f"https://a.test/p/{number}", "<p>the same") for number in range(50)]
    assert left_after(EqualPages(LIMIT), pages) == LEFT


def test_equal_pages_that_no_handler_parsed_are_given_up_too() -> None:
    pages = [page_at(f"https://a.test/p/{number}", "the same", is_parsed=False) for number in range(50)]
    assert left_after(EqualPages(LIMIT), pages) == LEFT


def test_a_hundred_thousand_different_pages_of_one_shape_are_all_fetched() -> None:
    repeats, page = EqualPages(LIMIT), page_at("https://a.test/product/1", "<p>x")
    for number in range(100_000):
        page.response = Response(
            url=page.url, status=200, headers={}, body=b"product %d" % number, wire_size=0, elapsed=0.0
        )
        page._tree = None  # not parsed yet
        assert not repeats.exhausted(page.task)
        repeats.note(page)


def test_one_new_page_in_a_row_of_equal_ones_starts_the_count_anew() -> None:
    bodies = ["<p>sold out"] * LIMIT + ["<p>a lamp"] + ["<p>sold out"] * (LIMIT - 1) + ["<p>a chair"]
    pages = [page_at(f"https://a.test/p/{number}", body) for number, body in enumerate(bodies)]
    assert left_after(EqualPages(LIMIT), pages) is None


def test_equal_pages_of_one_shape_say_nothing_of_the_others() -> None:
    repeats = EqualPages(LIMIT)
    left_after(repeats, [page_at(f"https://a.test/p/{number}", "<p>the same") for number in range(50)])
    assert not repeats.exhausted(page_at("https://a.test/about/us", "").task)
    assert not repeats.exhausted(page_at("https://b.test/p/1", "").task)


def test_a_host_whose_every_shape_repeats_itself_is_given_up_later() -> None:
    words = ["".join(chr(97 + number // 26**place % 26) for place in range(5)) for number in range(200)]
    pages = [page_at(f"https://a.test/{word}/list", "<p>the same") for word in words]
    assert left_after(EqualPages(LIMIT), pages) == LIMIT * LANE_FACTOR + SAMPLE_EVERY


def test_now_and_then_a_page_of_an_exhausted_kind_is_tried_and_a_new_one_opens_it_again() -> None:
    repeats = EqualPages(LIMIT)
    pages = [page_at(f"https://a.test/p/{number}", "<p>the same") for number in range(LEFT)]
    for page in pages:
        repeats.note(page)
    task = pages[0].task
    assert [repeats.exhausted(task) for _ in range(2 * PROBE_EVERY)].count(False) == 2
    assert repeats.note(pages[0])
    assert not repeats.note(page_at("https://a.test/p/999", "<p>something else"))
    assert not repeats.exhausted(task)


def test_a_start_url_is_never_given_up() -> None:
    repeats = EqualPages(LIMIT)
    left_after(repeats, [page_at(f"https://a.test/p/{number}", "<p>the same") for number in range(50)])
    link = RULES.resolve("https://a.test/p/1")
    assert not repeats.exhausted(Task(url=link.url, key=link.key, lane=link.lane, shape=link.shape, parent=None))


def test_pages_that_differ_in_their_links_alone_are_equal() -> None:
    pages = [page_at(f"https://a.test/p/{number}", f"<a href='/p/{number}'>next") for number in range(50)]
    assert left_after(EqualPages(LIMIT), pages) == LEFT


def test_pages_that_differ_in_their_pictures_are_not_equal() -> None:
    pages = [page_at(f"https://a.test/p/{number}", f"<p>a photo<img src={number}.jpg>") for number in range(50)]
    assert left_after(EqualPages(LIMIT), pages) is None


def test_pages_that_differ_in_what_their_meta_elements_say_are_not_equal() -> None:
    shell = (
        "<meta property=og:title content='Lamp {0}'><meta property=og:url content='https://a.test/{0}'><div id=root>"
    )
    pages = [page_at(f"https://a.test/p/{number}", shell.format(number)) for number in range(50)]
    assert left_after(EqualPages(LIMIT), pages) is None
    alike = [page_at(page.url, page.content.replace(f"Lamp {number}", "Lamp")) for number, page in enumerate(pages)]
    assert left_after(EqualPages(LIMIT), alike) is not None


def test_answers_without_a_body_and_error_pages_say_nothing_either_way() -> None:
    empty = [page_at(f"https://a.test/p/{number}", "", is_parsed=False) for number in range(50)]
    gone = [page_at(f"https://a.test/p/{number}", "<p>not found", status=404) for number in range(50)]
    assert left_after(EqualPages(LIMIT), empty + gone) is None


def test_pages_of_a_calendar_are_equal_when_only_numbers_differ() -> None:
    urls = ["https://a.test/day/2031/05/{:02}", "https://a.test/day?date=2031-05-{:02}", "https://a.test/d/20310{}"]
    for url in urls:
        pages = [page_at(url.format(number), f"<p>{number} May 2031, week {number // 7}") for number in range(10, 60)]
        assert left_after(EqualPages(LIMIT), pages) == LEFT


def test_other_pages_are_not_equal_when_their_numbers_differ() -> None:
    pages = [page_at(f"https://a.test/p/{number}", f"<p>Product {number}") for number in range(100)]
    assert left_after(EqualPages(LIMIT), pages) is None
    dated = [page_at(f"https://a.test/2031/05/{number}", f"<p>{'ab' * number}") for number in range(100)]
    assert left_after(EqualPages(LIMIT), dated) is None


def test_a_limit_of_zero_gives_up_no_page() -> None:
    pages = [page_at(f"https://a.test/p/{number}", "<p>the same") for number in range(500)]
    assert left_after(EqualPages(0), pages) is None


def test_large_pages_are_told_apart_by_their_bytes() -> None:
    walls = ["<p>the same" + f"<img src={number}.jpg>" * 20_000 for number in range(30)]
    pages = [page_at(f"https://a.test/p/{number}", wall) for number, wall in enumerate(walls)]
    assert left_after(EqualPages(LIMIT), pages) is None
    same = [page_at(f"https://a.test/p/{number}", walls[0]) for number in range(40)]
    assert left_after(EqualPages(LIMIT), same) is not None
