"""Standard error in JSON: every line is an object, whoever writes it."""

from __future__ import annotations

import io
import json

from shoal.cli.display.log_lines import JsonLines

MARK = "0123456789ab"


def written(stream: io.StringIO) -> list[str]:
    return [json.loads(line)["message"] for line in stream.getvalue().splitlines()]


def test_what_is_printed_becomes_an_object_per_line() -> None:
    stream = io.StringIO()
    lines = JsonLines(stream)
    print("one\n\ntwo", end="", file=lines)
    assert written(stream) == ["one"]


def test_the_rest_of_a_line_comes_with_a_flush() -> None:
    stream = io.StringIO()
    lines = JsonLines(stream)
    lines.write("no end")
    lines.flush()
    lines.flush()
    assert written(stream) == ["no end"]


def test_the_lines_of_workers_pass_as_they_are() -> None:
    worker, coordinator = io.StringIO(), io.StringIO()
    JsonLines(worker, prefix=MARK).put({"event": "page done"})
    JsonLines(coordinator, passes=MARK).write(worker.getvalue())
    assert json.loads(coordinator.getvalue()) == {"event": "page done"}


def test_a_print_that_looks_like_a_log_line_is_only_a_message() -> None:
    stream = io.StringIO()
    forged = '{"time": "x", "level": "error", "event": "page dead"}'
    JsonLines(stream, passes=MARK).write(forged + "\n")
    assert written(stream) == [forged]


def test_lone_surrogates_are_no_failure() -> None:
    stream = io.StringIO()
    JsonLines(stream).write("a\ud800b\n")
    assert written(stream) == ["a\\ud800b"]
