"""Which crawls are failures, and how their failures are named."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import SettingError
from shoal.model import CrawlState, Progress
from shoal.policy.failures import (
    Failure,
    code_line_in,
    failures_of,
    faults_of,
    is_stopped,
    pages_of,
    shown_failures,
    stopped_by,
)
from shoal.settings.layers import resolve
from shoal.settings.table import Settings
from shoal.settings.values import parse_max_failures

BY_DEFAULT = Settings().max_failures


def ended(**fields: Any) -> Progress:
    return Progress(**{"state": CrawlState.FINISHED, **fields})


def failures(progress: Progress, *, earlier: dict[str, int] | None = None, **settings: Any) -> list[tuple[str, int]]:
    found = failures_of(progress, earlier=earlier or {}, settings=Settings(**settings))
    return [(f"{failure.reason} {failure.at}".rstrip(), failure.pages) for failure in found]


@pytest.mark.parametrize(
    ("done", "dead", "max_failures", "is_failure"),
    [
        (50, 50, "50%", False),
        (49, 51, "50%", True),
        (0, 0, "50%", False),
        (0, 1, "50%", True),
        (900, 100, "100", False),
        (9000, 101, "100", True),
        (9999, 1, "0", True),
        (9999, 1, "0%", True),
        (10, 0, "0", False),
        (0, 9, "100%", False),
    ],
)
def test_a_crawl_fails_with_more_dead_letters_than_it_may_have(
    done: int, dead: int, max_failures: str, is_failure: bool
) -> None:
    assert bool(faults_of(ended(done=done, dead=dead), max_failures=max_failures)) is is_failure


def test_redirects_and_pages_that_robots_txt_keeps_out_are_no_pages() -> None:
    outcomes = {"ok": 2, "redirected": 50, "robots": 40, "robots_unavailable": 5, "dropped": 3, "handler": 3}
    progress = ended(done=100, dead=3, outcomes=outcomes)
    assert pages_of(progress) == 5
    (fault,) = faults_of(progress, max_failures="50%")
    assert fault == "3 of 5 pages failed (60 %): more than max_failures=50%"


def test_pages_of_a_trap_count_only_where_no_dead_letter_is_allowed() -> None:
    progress = ended(done=10, dead=1001, outcomes={"ok": 10, "equal_pages": 1000, "dns": 1})
    assert failures(progress) == [("dns", 1)]
    assert faults_of(progress, max_failures="50%") == faults_of(progress, max_failures="1") == []
    (fault,) = faults_of(progress, max_failures="0")
    assert fault == "1,001 of 1,011 pages failed (99 %): none may (max_failures=0)"


def test_a_crawl_fails_when_every_start_url_did() -> None:
    notes = {"start failed http_404": 2, "start failed robots": 1}
    progress = ended(done=3, outcomes={"http_404": 2, "robots": 1}, notes=notes)
    assert faults_of(progress, max_failures=BY_DEFAULT) == ["every start URL failed: http_404 (2), robots (1)"]
    one_good = ended(done=3, notes={**notes, "start ok": 1})
    assert faults_of(one_good, max_failures=BY_DEFAULT) == []


def test_a_crawl_fails_when_every_start_url_was_kept_out() -> None:
    progress = ended(rejected={"scheme": 1})
    assert faults_of(progress, max_failures=BY_DEFAULT) == ["every start URL was kept out: scheme (1)"]
    assert faults_of(ended(), max_failures=BY_DEFAULT) == []


def test_failures_are_dead_letters_by_outcome_and_exceptions_by_line() -> None:
    outcomes = {
        "ok": 80,
        "not_modified": 10,
        "http_404": 7,
        "redirected": 5,
        "robots": 2,
        "http_500": 4,
        "dns": 1,
        "handler": 6,
    }
    notes = {"raised KeyError books.py:14": 5, "raised TypeError books.py:20": 1, "items": 90}
    progress = ended(done=104, dead=11, outcomes=outcomes, notes=notes)
    assert failures(progress) == [
        ("KeyError books.py:14", 5),
        ("http_500", 4),
        ("TypeError books.py:20", 1),
        ("dns", 1),
    ]
    assert failures(ended(done=9, outcomes={"http_500": 9}), handle_statuses=(500,)) == []


def test_exceptions_of_letters_that_were_queued_again_are_not_counted_twice() -> None:
    earlier = {"raised KeyError books.py:14": 50}
    notes = {"raised KeyError books.py:14": 50, "raised TypeError books.py:15": 2}
    progress = ended(done=98, dead=2, outcomes={"ok": 98, "handler": 2}, notes=notes)
    assert failures(progress, earlier=earlier) == [("TypeError books.py:15", 2)]


def test_the_most_frequent_exception_is_always_shown() -> None:
    found = [Failure(reason=name, pages=9) for name in ("dns", "connect", "tls", "http_500")]
    exception = Failure(reason="KeyError", at="books.py:14", pages=1)
    assert shown_failures([*found, exception]) == [*found[:2], exception]
    assert shown_failures(found) == found[:3]


def test_a_pause_because_of_a_failing_handler_is_told_from_any_other() -> None:
    reason = stopped_by("parse", pages=50, what="KeyError: 'price' at books.py:14")
    assert reason == "parse failed on its first 50 pages: KeyError: 'price' at books.py:14"
    assert code_line_in(reason) == "books.py:14"
    assert is_stopped(Progress(state=CrawlState.PAUSED, reason=reason))
    assert not is_stopped(Progress(state=CrawlState.PAUSED, reason="the site asked us to wait"))
    assert not is_stopped(Progress(state=CrawlState.RUNNING, reason=reason))


@pytest.mark.parametrize("text", ["", "half", "50 %", "-1", "101%", "1e3", "0.5", "%"])
def test_refuses_a_max_failures_that_is_no_share_and_no_number(text: str) -> None:
    with pytest.raises(SettingError, match="write a share such as 50%, or a number such as 100"):
        parse_max_failures(text)
    with pytest.raises(SettingError, match="is not understood"):
        resolve([("shoal.toml", {"max_failures": text})])


def test_a_number_of_failures_may_be_written_as_a_number() -> None:
    assert resolve([("spider Books", {"max_failures": 0})]).values.max_failures == "0"


def test_a_crawl_fails_that_kept_tasks_out_for_their_kind() -> None:
    (fault,) = faults_of(ended(done=9, rejected={"too_many_kinds": 3}), max_failures=BY_DEFAULT)
    assert fault.startswith("3 tasks kept out: a crawl has at most 16 kinds of tasks")
