"""Log lines hold no secrets, and nothing that a page says can look like a line of its own."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.logs import EVENTS, FIELDS, PAGE, SPIDERS, WORK, Work, as_json, as_text, fields_of, message_fields
from shoal.model import Lease
from shoal.testing.fakes import task_for
from shoal.text.secrets import masked_page_url

HEADERS = {"Authorization": "Bearer hunter2hunter2"}
HOSTILE = 'a\nERROR shoal: forged\r\x1b[31m\u2028{"event": "forged"}\x85\u202e\ud800'


@pytest.fixture
def lease() -> Iterator[Lease]:
    task = task_for("https://a.test/list?page=2&access_token=hunter2", headers=HEADERS)
    lease = Lease(crawl="books-1", task=task, token=1)
    work, page = WORK.set(Work("books-1", "m:1:2")), PAGE.set(lease)
    yield lease
    PAGE.reset(page)
    WORK.reset(work)


def record(text: str, *arguments: Any, name: str = f"{SPIDERS}.books", **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.WARNING, "books.py", 1, text, arguments, None)
    vars(made).update(extra)
    return made


def test_a_spiders_line_names_the_page_that_is_handled(lease: Lease) -> None:
    fields = fields_of(record("no price on %s", "this one", price=3.5))
    assert list(fields)[:7] == ["time", "level", "event", "crawl", "worker", "key", "url"]
    assert (fields["event"], fields["level"], fields["logger"]) == ("spider", "warning", "books")
    assert (fields["crawl"], fields["worker"], fields["host"]) == ("books-1", "m:1:2", "a.test")
    assert fields["url"] == "https://a.test/list?page=2&access_token=***"
    assert (fields["message"], fields["price"]) == ("no price on this one", 3.5)


def test_a_line_outside_of_any_page_has_no_page() -> None:
    assert not {"crawl", "key", "url"} & fields_of(record("hello")).keys()


@pytest.mark.parametrize("as_line", [as_json, as_text])
def test_scraped_text_cannot_begin_a_line(lease: Lease, as_line: Any) -> None:
    line = as_line(fields_of(record(HOSTILE, title=HOSTILE)))
    assert len(line.splitlines()) == 1
    assert not any(ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for character in line)


def test_what_a_json_line_holds_is_what_was_said() -> None:
    (said,) = json.loads(as_json(fields_of(record("a\nb\u2028c"))))["message"].split("\t")
    assert said == "a\nb\u2028c"


def test_secrets_of_the_request_and_of_urls_are_masked(lease: Lease) -> None:
    text = "sent Bearer hunter2hunter2 to https://me:hunter2@a.test/?api_key=hunter2 and hunter2hunter2"
    line = as_json(fields_of(record(text, sent={"Cookie": "hunter2"})))
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@a.test/x", "https://a.test/x"),
        ("https://a.test/?keyword=shoes&monkey=1", None),
        ("https://a.test/?key=1&X-Amz-Signature=2#f", "https://a.test/?key=***&X-Amz-Signature=***#f"),
        ("https://a.test/a:b@c?authToken=1;x=2", "https://a.test/a:b@c?authToken=***;x=2"),
    ],
)
def test_of_a_pages_url_only_secrets_are_masked(url: str, shown: str | None) -> None:
    assert masked_page_url(url) == (shown or url)


def test_a_traceback_is_indented_and_masked(lease: Lease) -> None:
    try:
        raise ValueError("no price\n12:00:00 ERROR shoal: forged, Bearer hunter2hunter2")
    except ValueError:
        made = record("failed")
        made.exc_info = sys.exc_info()
    fields = fields_of(made)
    first, *rest = as_text(fields).splitlines()
    assert "failed" in first
    assert rest
    assert all(line.startswith("    ") for line in rest)
    assert "hunter2" not in as_json(fields)


def test_arguments_that_do_not_fit_are_shown_all_the_same() -> None:
    assert "12" in fields_of(record("%s and %s", 12))["message"]


def test_values_that_json_has_not_are_text() -> None:
    fields = fields_of(record("x", ratio=float("nan"), huge=2**70, when=object))
    assert json.loads(as_json(fields))["huge"] == str(2**70)


def test_an_event_has_its_fields_and_leaves_out_empty_ones(lease: Lease) -> None:
    made = record("page dead", name=EVENTS)
    setattr(made, FIELDS, {"crawl": "c", "worker": "", "status": None, "reason": "http_500", "seconds": 0.25})
    fields = fields_of(made)
    assert {name: fields[name] for name in fields if name != "time"} == {
        "level": "warning",
        "event": "page dead",
        "crawl": "c",
        "reason": "http_500",
        "seconds": 0.25,
    }


def test_a_line_for_people_is_a_message() -> None:
    fields = message_fields("shoal: no such file", now=0.0)
    assert (fields["time"], fields["level"], fields["event"]) == ("1970-01-01T00:00:00.000Z", "error", "message")
