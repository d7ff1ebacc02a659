"""`shoal run --sink` and `shoal sink`: items flow on while a crawl runs, wait while a sink is away, and come again."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_line import Folder
from serving import serving

from shoal.testing.servers.http_receiver import http_receiver
from shoal.testing.servers.programs import free_port
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sink_contract import check_delivery
from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import wait_until

PRODUCTS = 30


def status(folder: Folder, *more: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(folder.run("sink", "status", "--json", *more).stdout)
    return found


def stored(path: Path) -> dict[str, int]:
    """The version of each item."""
    with sqlite3.connect(path) as db:
        found = dict(db.execute("SELECT key, version FROM items").fetchall())
    db.close()
    return found


def lines_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_items_flow_into_a_file_and_the_summary_says_so(folder: Folder, site: SiteProcess) -> None:
    shown = folder.run("run", folder.spider(site.url), "--sink", "out.jsonl")
    found = lines_in(folder.path / "out.jsonl")
    assert len(found) == PRODUCTS
    check_delivery(found, expected=stored(folder.path / "shoal.db"))
    assert f"{PRODUCTS} changes sent to {folder.path}/out.jsonl" in shown.stdout
    (state,) = status(folder)
    assert (state["sent"], state["waiting"], state["trouble"], state["spider"]) == (PRODUCTS, 0, "", "books")
    with sqlite3.connect(folder.path / "shoal.db") as db:
        assert db.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
    db.close()


@pytest.mark.parametrize("store", ["shoal.db", "files:results"])
def test_a_later_run_sends_only_changes_though_it_does_not_name_the_sink(
    folder: Folder, site: SiteProcess, store: str
) -> None:
    folder.run("run", folder.spider(site.url), "--sink", "out.jsonl", "--store", store)
    again = folder.run("run", "books.py", "--again", "--store", store)
    assert len(lines_in(folder.path / "out.jsonl")) == PRODUCTS
    assert "as in earlier runs: `shoal sink remove` removes them" in again.stderr
    (folder.path / "books.py").write_text((folder.path / "books.py").read_text().replace("title=", "name="))
    folder.run("run", "books.py", "--again", "--store", store)
    found = lines_in(folder.path / "out.jsonl")
    assert [one["change"] for one in found] == ["new"] * PRODUCTS + ["changed"] * PRODUCTS
    check_delivery(found, expected={one["key"]: 2 for one in found})
    folder.run("sink", "remove", "--store", store)
    assert status(folder, "--store", store) == []


def test_worker_processes_feed_the_sink_through_the_coordinator(
    folder: Folder, site: SiteProcess, redis: RedisServer
) -> None:
    folder.run("run", folder.spider(site.url), "--workers", "2", "--sink", f"{redis.url}?list=fleet")
    found = [json.loads(text) for text in redis.call("LRANGE", "fleet", 0, -1)]
    check_delivery(found, expected=stored(folder.path / "shoal.db"))


@pytest.mark.full
def test_a_sink_that_is_away_for_the_whole_crawl_catches_up(folder: Folder, site: SiteProcess, tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "late")
    url = f"{server.url}?stream=late"
    shown = folder.run("run", folder.spider(site.url), "--sink", url, code=1)
    assert f"cannot reach Redis at {url}" in shown.stderr
    assert shown.stderr.count("cannot reach Redis") <= 2
    line = " ".join(shown.stdout.split())
    assert f"{PRODUCTS} changes wait for the sink {url}: cannot reach Redis" in line
    assert "shoal sink send" in line
    assert len(stored(folder.path / "shoal.db")) == PRODUCTS
    (state,) = status(folder)
    assert (state["waiting"], state["sent"]) == (PRODUCTS, 0)
    assert state["trouble"].startswith("cannot reach Redis")
    assert state["oldest"] <= state["trouble_since"] + 60
    folder.run("sink", "send", code=1)
    server.start()
    try:
        assert f"{PRODUCTS} changes sent to {url}" in folder.run("sink", "send").stdout
        keys = [fields[1] for fields in redis_entries(server)]
        assert len(keys) == PRODUCTS
    finally:
        server.stop()
    (state,) = status(folder)
    assert (state["waiting"], state["sent"], state["trouble"]) == (0, PRODUCTS, "")


def redis_entries(server: RedisServer) -> list[Any]:
    entries: list[Any] = server.call("XRANGE", "late", "-", "+")
    return entries


@pytest.mark.full
def test_a_sink_that_comes_back_during_the_crawl_gets_everything(folder: Folder, site: SiteProcess) -> None:
    with http_receiver(lambda number: 503 if number <= 3 else 204) as receiver:
        url = f"{receiver.url}/in#unsigned"
        shown = folder.run("run", folder.spider(site.url, rate="20/s"), "--sink", url)
    assert f"the webhook {receiver.url}/in answered 503; waiting" in shown.stderr
    assert "takes changes again" in shown.stderr
    found = [one for request in receiver.received[3:] for one in json.loads(request.body)]
    check_delivery(found, expected=stored(folder.path / "shoal.db"))


@pytest.mark.full
def test_a_pumping_process_that_is_killed_loses_nothing(folder: Folder, site: SiteProcess) -> None:
    spider = folder.spider(site.url, rate="30/s")
    expected: dict[str, int] = {}
    for _ in range(2):
        more = len(expected) + 3
        with folder.start("run", spider, "--sink", "out.jsonl", "--workers", "2", start_new_session=True) as process:
            wait_until(partial(has_lines, folder, more), otherwise="nothing flows")
            os.killpg(process.pid, 9)
            process.communicate()
        expected = {one["key"]: 1 for one in lines_so_far(folder)}
    folder.run("run", spider, "--sink", "out.jsonl")
    found = lines_in(folder.path / "out.jsonl")
    check_delivery(found, expected=stored(folder.path / "shoal.db"))
    assert len({one["key"] for one in found}) == PRODUCTS


def has_lines(folder: Folder, number: int) -> bool:
    return len(lines_so_far(folder)) > number


def lines_so_far(folder: Folder) -> list[dict[str, Any]]:
    path = folder.path / "out.jsonl"
    whole = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    return [json.loads(line) for line in whole]


def test_standard_output_is_a_sink_for_one_run(folder: Folder, site: SiteProcess) -> None:
    shown = folder.run("run", folder.spider(site.url), "--sink", "-")
    found = [json.loads(line) for line in shown.stdout.splitlines()]
    check_delivery(found, expected=stored(folder.path / "shoal.db"))
    assert f"{PRODUCTS} changes sent to standard output" in shown.stderr
    assert status(folder) == []


def test_a_replay_sends_everything_again(folder: Folder, site: SiteProcess, redis: RedisServer) -> None:
    url = f"{redis.url}?list=replayed"
    folder.run("run", folder.spider(site.url), "--sink", url)
    redis.call("DEL", "replayed")
    shown = folder.run("sink", "replay")
    assert f"{PRODUCTS} items queued for {url}" in shown.stderr
    found = [json.loads(text) for text in redis.call("LRANGE", "replayed", 0, -1)]
    assert {(one["change"], one["version"]) for one in found} == {("new", 1)}
    assert {one["key"] for one in found} == set(stored(folder.path / "shoal.db"))
    assert json.loads(folder.run("sink", "replay", "1", "--since", "2100-01-01", "--json").stdout)[0]["sent"] == 0


def test_a_wrong_sink_is_refused_before_the_crawl_begins(folder: Folder, site: SiteProcess, redis: RedisServer) -> None:
    redis.call("SET", "text", "a")
    spider = folder.spider(site.url)
    for url, line in [
        ("items.csv", "unknown sink 'items.csv': give a path that ends in .jsonl"),
        (f"{redis.url}?list=text", "the key 'text' in Redis"),
        (f"{redis.url}", "names no list and no stream"),
        ("https://hooks.test/in", "needs a secret to sign messages with"),
        ("nowhere/items.jsonl", "nowhere/items.jsonl is not there: make it"),
    ]:
        refused = folder.run("run", spider, "--sink", url, code=2).stderr
        assert line in refused
        assert len(refused.splitlines()) == 1
    assert not (folder.path / "shoal.db").exists()
    assert "--sink - and -o - or --json" in folder.run("run", spider, "--sink", "-", "-o", "-", code=2).stderr


def test_a_password_is_kept_nowhere_and_asked_for(folder: Folder, site: SiteProcess) -> None:
    url = f"redis://me:s3cr3t@127.0.0.1:{free_port()}/0?list=books"
    run = folder.run("run", folder.spider(site.url), "--sink", url, code=1)
    known = url.replace(":s3cr3t", "")
    seen = run.stdout + run.stderr
    again = folder.run("run", "books.py", code=0)
    assert f"the sink {known} needs its password: give its whole URL" in again.stderr
    seen += again.stdout + again.stderr
    refused = folder.run("sink", "send", code=1)
    assert "needs its password" in refused.stderr
    tried = folder.run("sink", "send", url, code=1)
    assert f"cannot reach Redis at {known}" in tried.stderr
    seen += refused.stderr + tried.stdout + tried.stderr + json.dumps(status(folder))
    assert "s3cr3t" not in seen
    assert b"s3cr3t" not in b"".join(path.read_bytes() for path in folder.path.glob("shoal.db*"))


def test_a_sink_is_named_by_its_id_or_url_and_not_dropped_by_a_slip(folder: Folder, site: SiteProcess) -> None:
    away = f"redis://127.0.0.1:{free_port()}/0?list=books"
    folder.run("run", folder.spider(site.url), "--sink", away, "--sink", "out.jsonl", code=1)
    assert "2 sinks match: name one by its id" in folder.run("sink", "replay", code=2).stderr
    assert "there is no sink 9" in folder.run("sink", "remove", "9", code=2).stderr
    assert f"{PRODUCTS} changes wait for" in folder.run("sink", "remove", "1", code=2).stderr
    shown = folder.run("sink", "remove", away, "--yes").stdout
    assert f"books is no longer sent to {away}, {PRODUCTS} changes dropped" in shown
    assert [state["sink"] for state in status(folder)] == [str(folder.path / "out.jsonl")]
    assert "out.jsonl" in folder.run("sink", "status").stdout


def test_a_process_that_follows_sends_what_a_crawl_leaves(folder: Folder, site: SiteProcess, tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "followed")
    folder.run("run", folder.spider(site.url), "--sink", f"{server.url}?list=books", code=1)
    with folder.start("sink", "send", "--follow", stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: status(folder)[0]["trouble"], otherwise="no trouble is noted")
        server.start()
        wait_until(lambda: server.call("LLEN", "books") == PRODUCTS, otherwise="the sink does not catch up")
        wait_until(lambda: not status(folder)[0]["waiting"], otherwise="what was sent still waits")
        process.terminate()
        assert process.wait(60) == 0
    server.stop()


@pytest.mark.full
def test_a_serving_process_sends_what_runs_have_left(folder: Folder, site: SiteProcess, tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "served")
    folder.run("run", folder.spider(site.url), "--sink", f"{server.url}?list=books", code=1)
    server.start()
    with serving(folder):
        wait_until(lambda: not status(folder)[0]["waiting"], otherwise="what waits is not sent")
        found = [json.loads(text) for text in server.call("LRANGE", "books", 0, -1)]
        check_delivery(found, expected=stored(folder.path / "shoal.db"))
    # The duty was given back: a run has it at once.
    folder.run("run", "books.py", "--again")
    server.stop()
