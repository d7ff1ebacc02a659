"""URLs of sinks: their kinds, what is remembered of them, and what is refused."""

from __future__ import annotations

import pytest

from shoal.errors import UsageError
from shoal.sinks.pump import sinks_given
from shoal.sinks.urls import parse_sink


@pytest.mark.parametrize(
    ("url", "known", "is_local", "has_secret"),
    [
        ("-", "-", True, False),
        ("/data/items.jsonl", "file:///data/items.jsonl", True, False),
        ("file:///data/items.ndjson", "file:///data/items.ndjson", True, False),
        ("redis://queue:6379/0?list=books", "redis://queue:6379/0?list=books", False, False),
        ("redis://:s3cr3t@queue/0?list=b", "redis://queue/0?list=b", False, True),
        ("rediss://me:s3cr3t@queue/0?stream=b&maxlen=9", "rediss://me@queue/0?stream=b&maxlen=9", False, True),
        ("redis://127.0.0.1:7000/0?list=b", "redis://127.0.0.1:7000/0?list=b", True, False),
        ("redis://[::1]:7000/0?list=b", "redis://[::1]:7000/0?list=b", True, False),
        ("unix:///run/redis.sock?list=b", "unix:///run/redis.sock?list=b", True, False),
        ("https://hooks.test/in?token=s3cr3t&shop=1", "https://hooks.test/in?shop=1", False, True),
        ("https://hooks.test/in#secret_env=HOOK", "https://hooks.test/in#secret_env=HOOK", False, False),
        (
            "amqp://me:s3cr3t@mq/shop?exchange=items&routing_key=a",
            "amqp://me@mq/shop?exchange=items&routing_key=a",
            False,
            True,
        ),
        ("sqs://books.fifo?region=eu-central-1", "sqs://books.fifo?region=eu-central-1", False, False),
        ("sqs://b?endpoint=http%3A%2F%2F127.0.0.1%3A9", "sqs://b?endpoint=http%3A%2F%2F127.0.0.1%3A9", True, False),
        ("https://hooks.test/in?api_key=s3cr3t", "https://hooks.test/in", False, True),
    ],
)
def test_a_sink_is_remembered_without_its_secrets(url: str, known: str, is_local: bool, has_secret: bool) -> None:
    parsed = parse_sink(url)
    assert (parsed.known, parsed.is_local, parsed.has_secret) == (known, is_local, has_secret)
    assert "s3cr3t" not in parsed.known + parsed.shown
    assert parse_sink(parsed.known).known == known


def test_a_path_is_remembered_from_the_root(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    assert parse_sink("items.jsonl").known == f"file://{tmp_path}/items.jsonl"


@pytest.mark.parametrize(
    "url", ["", "items", "items.csv", "kafka://host/topic", "redis:host", "file:///data/items.csv"]
)
def test_an_unknown_sink_is_refused_with_what_would_do(url: str) -> None:
    with pytest.raises(
        UsageError, match=r"unknown sink .*: give a path that ends in \.jsonl, .*, or - for standard output"
    ):
        parse_sink(url)


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("redis://queue/0", "names no list and no stream: write redis://host:6379/0?list=NAME"),
        ("redis://queue/0?list=a&stream=b", "names no list and no stream"),
        ("redis://queue/0?list=a&maxlen=9", "is a list, and maxlen is for streams"),
        ("redis://queue/0?stream=a&maxlen=many", "maxlen is a number of entries"),
        ("redis://queue/0?list=a&no_such=1", "is not a usable Redis URL"),
        ("redis://:***@queue/0?list=a", "write the password there"),
        ("redis://:pa/ss@queue/0?list=a", "inside a password as %2F"),
        ("amqp://mq/", "names no exchange and no queue: write amqp://"),
        ("amqp://mq/?exchange=a&queue=b", "names no exchange and no queue"),
        ("amqp://mq/?exchange=a&exchnage=b", "has an unknown option 'exchnage': known are exchange, routing_key"),
        ("sqs://", "names no queue: write sqs://QUEUE"),
        ("sqs://me:pw@b?region=x", "credentials come from AWS's usual chain, not from the URL"),
        ("sqs://b?endpoint=host", "endpoint is the URL of a service"),
        ("sqs://b?regin=x", "has an unknown option 'regin': known are region, endpoint"),
        ("https://hooks.test/in", "needs a secret to sign messages with, and SHOAL_WEBHOOK_SECRET has none"),
        ("https://hooks.test/in#secret_env=NOT_SET", "and NOT_SET has none"),
        ("https://hooks.test/in#secret_file=/no/such/file", "cannot be read from /no/such/file"),
        ("https://hooks.test/in#secret=abc", "has an unknown option 'secret' behind #"),
    ],
)
def test_a_sink_that_cannot_work_is_refused_before_anything_begins(url: str, line: str) -> None:
    with pytest.raises(UsageError) as caught:
        sinks_given([url], environ={})
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_same_sink_given_twice_is_one() -> None:
    assert len(sinks_given(["redis://q/0?list=a", "redis://:pw@q/0?list=a", "redis://q/0?list=b"])) == 2
