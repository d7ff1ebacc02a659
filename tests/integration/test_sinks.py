"""Sinks on real files, a Redis server and an HTTP server: what arrives, what is refused, what is waited for."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from redis import Redis
from sinks import message

from shoal.errors import ServerUnreachable, UsageError
from shoal.sinks import open_sink
from shoal.sinks.base import Sink
from shoal.sinks.jsonl import FileSink
from shoal.sinks.urls import parse_sink
from shoal.testing.servers.http_receiver import http_receiver
from shoal.testing.servers.programs import free_port
from shoal.testing.servers.redis_server import RedisServer

SECRET = "s3cr3t-of-the-hook"


def opened(url: str) -> Sink:
    return open_sink(parse_sink(url), environ={"SHOAL_WEBHOOK_SECRET": SECRET})


class TestFile:
    async def test_lines_are_appended_in_order(self, tmp_path: Path) -> None:
        sink = opened(str(tmp_path / "items.jsonl"))
        await sink.check()
        assert not (tmp_path / "items.jsonl").exists()
        await sink.deliver([message(1), message(2)])
        on_two, spaced = (msgspec.Raw(text) for text in (b'{"a":\n1}', b'{"b": 2}'))
        await sink.deliver([message(1, version=2, item=on_two), message(3, item=spaced)])
        await sink.close()
        lines = (tmp_path / "items.jsonl").read_bytes().splitlines()
        assert [json.loads(line)["id"] for line in lines] == ["books/1/1", "books/2/1", "books/1/2", "books/3/1"]
        assert json.loads(lines[0]) == {
            "id": "books/1/1", "spider": "books", "key": "1", "version": 1, "change": "new", "at": 100.5,
            "url": "https://a.test/1", "crawl": "books-1", "item": {"n": 1},
        }  # fmt: skip
        assert json.loads(lines[2])["item"] == {"a": 1}
        assert b'"item":{"b": 2}' in lines[3]

    @pytest.mark.parametrize("length", [1, 30, 200_000])
    async def test_a_line_that_a_crash_tore_is_cut_off(self, tmp_path: Path, length: int) -> None:
        path = tmp_path / "items.jsonl"
        path.write_bytes(b'{"whole":1}\n{"torn":"' + b"x" * length)
        await FileSink(str(path)).deliver([message(1)])
        first, second = path.read_bytes().splitlines()
        assert (json.loads(first), json.loads(second)["id"]) == ({"whole": 1}, "books/1/1")

    @pytest.mark.parametrize("line", [b'{"of":"somebody"}', b"1"])
    async def test_a_last_line_that_only_lacks_its_end_stays(self, tmp_path: Path, line: bytes) -> None:
        path = tmp_path / "items.jsonl"
        path.write_bytes(line)
        await FileSink(str(path)).deliver([message(1)])
        assert path.read_bytes().splitlines()[0] == line
        assert len(path.read_bytes().splitlines()) == 2

    async def test_a_file_that_is_moved_away_is_begun_anew(self, tmp_path: Path) -> None:
        sink = FileSink(str(tmp_path / "items.jsonl"))
        await sink.deliver([message(1)])
        (tmp_path / "items.jsonl").rename(tmp_path / "old.jsonl")
        await sink.deliver([message(2)])
        assert b"books/2/1" in (tmp_path / "items.jsonl").read_bytes()

    async def test_a_full_disk_is_waited_for_and_leaves_whole_lines(self, tmp_path: Path) -> None:
        from shoal.testing.contract.store.rows import files_no_larger_than

        path = tmp_path / "items.jsonl"
        await FileSink(str(path)).deliver([message(1)])
        before = path.read_bytes()
        with files_no_larger_than(len(before) + 100), pytest.raises(ServerUnreachable, match=r"items\.jsonl: "):
            await FileSink(str(path)).deliver([message(number) for number in range(10)])
        assert path.read_bytes() == before

    async def test_a_folder_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        sink = FileSink(str(tmp_path / "nowhere" / "items.jsonl"))
        with pytest.raises(UsageError, match="is not there: make it, or name another file"):
            await sink.check()
        with pytest.raises(UsageError, match="cannot be written"):
            await sink.deliver([message(1)])


class TestRedis:
    @pytest.fixture
    def server(self, redis: RedisServer) -> Iterator[tuple[str, Redis]]:
        redis.call("ACL", "SETUSER", "me", "on", ">s3cr3t", "~*", "+@all")
        url = redis.url.replace("redis://", "redis://me:s3cr3t@")
        client = Redis.from_url(url)
        yield url, client
        client.close()

    async def test_a_list_gets_a_json_text_per_message(self, server: tuple[str, Redis]) -> None:
        url, client = server
        name = f"list-{uuid4().hex}"
        sink = opened(f"{url}?list={name}")
        await sink.check()
        await sink.deliver([message(1), message(2)])
        await sink.deliver([message(3)])
        await sink.check()
        await sink.close()
        found = [json.loads(text) for text in client.lrange(name, 0, -1)]
        assert [one["id"] for one in found] == ["books/1/1", "books/2/1", "books/3/1"]
        assert found[0]["item"] == {"n": 1}

    async def test_a_stream_gets_an_entry_per_message(self, server: tuple[str, Redis]) -> None:
        url, client = server
        name = f"stream-{uuid4().hex}"
        sink = opened(f"{url}?stream={name}")
        await sink.check()
        await sink.deliver([message(number) for number in range(500)])
        await sink.close()
        found = client.xrange(name)
        assert [fields[b"key"] for _, fields in found] == [str(number).encode() for number in range(500)]
        assert json.loads(found[7][1][b"item"]) == {"n": 7}
        assert (found[7][1][b"version"], found[7][1][b"change"]) == (b"1", b"new")

    async def test_a_stream_may_be_bounded(self, server: tuple[str, Redis]) -> None:
        url, client = server
        name = f"stream-{uuid4().hex}"
        sink = opened(f"{url}?stream={name}&maxlen=100")
        for start in range(0, 2000, 500):
            await sink.deliver([message(number) for number in range(start, start + 500)])
        await sink.close()
        assert 100 <= client.xlen(name) < 500

    @pytest.mark.parametrize("kind", ["list", "stream"])
    async def test_a_key_of_another_type_is_one_clear_line(self, server: tuple[str, Redis], kind: str) -> None:
        url, client = server
        name = f"hash-{uuid4().hex}"
        client.hset(name, "a", "b")
        sink = opened(f"{url}?{kind}={name}")
        with pytest.raises(
            UsageError, match=rf"the key '{name}' in Redis at .* holds a hash, not a {kind}: name another"
        ):
            await sink.check()
        with pytest.raises(UsageError, match=f"not a {kind}: name another"):
            await sink.deliver([message(1)])
        await sink.close()

    async def test_a_wrong_password_is_one_clear_line_without_it(self, server: tuple[str, Redis]) -> None:
        sink = opened(f"{server[0].replace('s3cr3t', 'guessed')}?list=a")
        with pytest.raises(UsageError, match=r"refuses us: .*; check user and password in the URL") as caught:
            await sink.check()
        assert "guessed" not in str(caught.value)
        await sink.close()

    async def test_a_server_that_is_away_is_waited_for(self) -> None:
        sink = opened(f"redis://127.0.0.1:{free_port()}/0?list=a")
        with pytest.raises(ServerUnreachable, match="cannot reach Redis at redis://127"):
            await sink.deliver([message(1)])
        await sink.close()


class TestWebhook:
    async def test_messages_come_signed_in_arrays(self) -> None:
        with http_receiver() as receiver:
            sink = opened(f"{receiver.url}/in?shop=1")
            await sink.deliver([message(1), message(2)])
            await sink.deliver([message(3)])
            await sink.close()
        first, second = receiver.received
        assert first.path == "/in?shop=1"
        assert [one["id"] for one in json.loads(first.body)] == ["books/1/1", "books/2/1"]
        assert [one["id"] for one in json.loads(second.body)] == ["books/3/1"]
        signed = first.headers["shoal-timestamp"].encode() + b"." + first.body
        expected = "v1=" + hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
        assert first.headers["shoal-signature"] == expected
        assert first.headers["content-type"] == "application/json"

    async def test_the_secret_may_be_in_a_file_or_not_wanted(self, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text(f"{SECRET}\n")
        with http_receiver() as receiver:
            for tail in (f"#secret_file={tmp_path}/secret", "#unsigned"):
                sink = open_sink(parse_sink(f"{receiver.url}/in{tail}"), environ={})
                await sink.deliver([message(1)])
                await sink.close()
        signed, unsigned = receiver.received
        assert signed.headers["shoal-signature"].startswith("v1=")
        assert "shoal-signature" not in unsigned.headers

    async def test_large_messages_are_spread_over_several_posts(self) -> None:
        text = msgspec.Raw(json.dumps({"text": "x" * 400_000}).encode())
        with http_receiver() as receiver:
            sink = opened(f"{receiver.url}/in")
            await sink.deliver([message(number, item=text) for number in range(5)])
            await sink.close()
        assert [len(json.loads(one.body)) for one in receiver.received] == [2, 2, 1]

    @pytest.mark.parametrize(
        ("status", "error", "line"),
        [
            (503, ServerUnreachable, "answered 503"),
            (429, ServerUnreachable, "answered 429"),
            (301, ServerUnreachable, "answered 301"),
            (401, UsageError, "refuses messages with 401: check its secret"),
            (422, UsageError, "refuses messages with 422: check its URL and what it takes"),
        ],
    )
    async def test_only_2xx_is_a_delivery(self, status: int, error: type[Exception], line: str) -> None:
        with http_receiver(lambda _: status) as receiver:
            sink = opened(f"{receiver.url}/in?token=hidden-word")
            with pytest.raises(error, match=line) as caught:
                await sink.deliver([message(1)])
            await sink.close()
        assert "hidden-word" not in str(caught.value)

    async def test_a_receiver_that_is_away_is_waited_for_and_no_secret_is_shown(self) -> None:
        sink = opened(f"http://me:pass-word@127.0.0.1:{free_port()}/in?token=hidden-word")
        with pytest.raises(ServerUnreachable, match="cannot reach the webhook http://me@127") as caught:
            await sink.deliver([message(1)])
        await sink.close()
        assert not {"hidden-word", "pass-word", SECRET} & set(str(caught.value).replace("=", " ").split())
        assert "hidden-word" not in str(caught.value)


async def test_standard_output_gets_lines(capfd: pytest.CaptureFixture[str]) -> None:
    sink = opened("-")
    await sink.check()
    await sink.deliver([message(1), message(2)])
    await sink.close()
    assert [json.loads(line)["id"] for line in capfd.readouterr().out.splitlines()] == ["books/1/1", "books/2/1"]


async def test_standard_output_that_was_closed_is_one_clear_line() -> None:
    reading, writing = os.pipe()
    kept = os.dup(1)
    os.close(reading)
    os.dup2(writing, 1)
    try:
        with pytest.raises(UsageError, match="standard output takes no more: Broken pipe"):
            await opened("-").deliver([message(1)])
    finally:
        os.dup2(kept, 1)
        os.close(writing)
        os.close(kept)
