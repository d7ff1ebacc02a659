"""Nasty hosts, each beside a good one in the same crawl: bounded time and memory, a named reason, no harm next door.

The tables are the suite: a line is a host that misbehaves in one way, and the name under which `shoal why` tells it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hostile_crawl import LIMITS, MIB, Outcome, crawl_beside_a_good_host, name_of

from shoal import Item, Page, Spider
from shoal.crawl.beginning import begin
from shoal.crawl.opening import Places, opened
from shoal.crawl.sources import feed, requests_of
from shoal.model import DeadFilter, Progress
from shoal.run.building import worker_for
from shoal.run.intakes import intake_of, settings_of
from shoal.store.base import ItemFilter
from shoal.testing.sites.hostile import BEHAVIOURS, page_of
from shoal.worker.retirement import resident_bytes

SECONDS = 120.0
# A worker with the pages of 64 slots in hand, none of them larger than 4 MiB, weighs no more than this.
MOST_MEMORY = 400 * MIB
MOST_GROWTH = 200 * MIB

TIMEOUT = "timeout_first_byte timeout_idle timeout_total"  # which one comes first may depend on the machine
SLOW = {
    "/slow-headers": TIMEOUT,
    "/endless-headers": TIMEOUT,
    "/endless-continue": TIMEOUT,
    "/stall": TIMEOUT,
    "/drip": TIMEOUT,  # one byte at a time
    "/endless-tiny-chunks": TIMEOUT + " too_large",
    "/chunked/extension": TIMEOUT + " protocol",
    "/chunked/trailers": TIMEOUT + " protocol",
}
ENDLESS = {
    "/endless": "too_large",
    "/redirects/0": "redirected",
    "/redirect/self": "redirect_loop",
    "/links": "ok",  # a hundred thousand
    "/hrefs": "ok",  # a quarter of a megabyte each
    "/early-hints": "ok",  # after a hundred thousand of them
    "/nested": "too_large",
}
HEADERS = {
    "/headers/huge": "protocol",
    "/headers/many": "protocol",
    "/headers/broken": "protocol",
    "/headers/cookies": "ok",  # as large as they may be together
    "/headers/etag": "ok",
    "/non-ascii-headers": "ok",
    "/location/huge": "redirected",
    "/location/binary": "redirected",
    "/redirect/nowhere": "http_302",
    "/status/999": "http_999",
    "/upgrade": "http_101",
    "/503": "http_503",
    "/429-negative": "http_429",
    "/429-millennium": "http_429",
}
LENGTHS = {
    "/short": "truncated",
    "/lengths/too-short": "ok",
    "/lengths/negative": "protocol",
    "/lengths/endless": "protocol",
    "/lengths/announced": "too_large",
    "/lengths/same": "ok",
    "/lengths/different": "protocol",
    "/lengths/and-chunked": "ok",
    "/chunked/twice": "ok",
    "/chunked/unknown": "bad_encoding",
    "/chunked/zipped": "bad_encoding",
    "/chunked/overflow": "protocol",
    "/chunked/negative": "protocol",
    "/chunked/garbage": "protocol",
    "/chunked/lying-trailers": "ok",
    "/chunked/cut": "truncated",
    "/http09": "protocol",
    "/http10": "ok",
    "/garbage": "protocol",
    "/close": "connect protocol truncated",
    "/reset": "connect protocol truncated",
    "/reset-in-body": "truncated protocol",
}
BOMBS = {
    "/bomb/gzip": "too_large bomb",
    "/bomb/members": "bad_encoding",
    "/bomb/deflate": "too_large bomb",
    "/bomb/br": "bomb",
    "/bomb/zstd": "bomb",
    "/bomb/stacked": "bomb",
    "/encoding/good": "ok",
    "/encoding/stacked": "ok",
    "/encoding/four-layers": "bad_encoding",
    "/encoding/thousand-names": "bad_encoding",
    "/encoding/lie": "bad_encoding",
    "/encoding/unknown": "bad_encoding",
    "/encoding/cut": "truncated",
}
TEXTS = {
    "/charset/lie": "ok",
    "/charset/nonsense": "ok",
    "/charset/utf-16": "ok",
    "/charset/invalid-utf-8": "ok",
    "/binary": "ok",
    "/nuls": "ok",
}
# What is read of pages that end well though something is wrong with them.
READ = {
    "/charset/lie": "caf�, na�ve",
    "/charset/nonsense": "café",
    "/charset/utf-16": b"<p>plain ASCII</p>".decode("utf-16-le"),
    "/charset/invalid-utf-8": "x",
    "/nuls": "ab x",
    "/lengths/too-short": "hello",
    "/lengths/same": "ab",
    "/lengths/and-chunked": "hello",
    "/chunked/twice": "hello",
    "/chunked/lying-trailers": "hello",
    "/early-hints": "at last",
    "/http10": "until the end",
}
ANSWERS = {**ENDLESS, **HEADERS, **LENGTHS, **BOMBS, **TEXTS}

# Where hosts redirect to, and the name under which the target ends. INNER is the port of a server on 127.0.0.1.
REDIRECTS = {
    "http://127.0.0.1:INNER/plain": "refused_address",
    "http://2130706433:INNER/decimal": "refused_address",
    "http://0x7f000001:INNER/hex": "refused_address",
    "http://0177.0.0.1:INNER/octal": "refused_address",
    "http://0x7f.0.0.0x1:INNER/mixed": "refused_address",
    "http://127.1:INNER/short": "refused_address",
    "http://127.0.0.1.:INNER/dot": "refused_address",
    "http://%31%32%37.0.0.1:INNER/escaped": "refused_address",
    "http://%EF%BC%91%EF%BC%92%EF%BC%97.0.0.1:INNER/full-width": "refused_address",
    "http://%E2%91%A0%E2%91%A1%E2%91%A6.0.0.1:INNER/circled": "refused_address",
    "http://127%E3%80%820%E3%80%820%E3%80%821:INNER/ideographic-dots": "refused_address",
    "http://loc%C2%ADalhost:INNER/soft-hyphen": "refused_address",
    "http://0:INNER/zero": "refused_address",
    "http://localhost:INNER/name": "refused_address",
    "http://[::1]:INNER/six": "refused_address",
    "http://[::]:INNER/six-unspecified": "refused_address",
    "http://[::ffff:127.0.0.1]:INNER/mapped": "refused_address",
    "http://[::ffff:127.0.1.1]:INNER/mapped-though-exempt": "refused_address",
    "http://[::127.0.0.1]:INNER/compatible": "refused_address",
    "http://[64:ff9b::127.0.0.1]:INNER/nat64": "refused_address",
    "http://[64:ff9b:1::7f00:1]:INNER/local-nat64": "refused_address",
    "http://[2002:7f00:1::]:INNER/6to4": "refused_address",
    "http://[2001:0:7f00:1::]:INNER/teredo": "refused_address",
    "http://169.254.169.254/latest/meta-data/": "refused_address",
    "http://0xa9fea9fe/latest/hex": "refused_address",
    "http://[fd00:ec2::254]/latest/": "refused_address",
    "http://10.0.0.1/": "refused_address",
    "http://192.168.1.1/router": "refused_address",
    "http://100.64.0.1/carrier": "refused_address",
    "//127.0.0.1:INNER/schemeless": "refused_address",
    "http://127.0.1.1:1/another-port": "connect",
}
# Targets that never become a task, and the rule that keeps them out.
UNUSABLE = {
    "http://user:hunter2@127.0.0.1:INNER/userinfo": "credentials",
    "http://127.0.1.1@127.0.0.1:INNER/lookalike": "credentials",
    "file:///etc/passwd": "scheme",
    "gopher://127.0.0.1:INNER/_x": "scheme",
    "javascript:alert(1)": "scheme",
    "data:text/html,hello": "scheme",
    "http://256.256.256.256/": "invalid_url",
    "http://[::1/": "invalid_url",
}


# Pages that lead off their host without a link to it, by a redirect behind a link or by a <base>; and where to.
OFF_HOST = {
    "/link-to?http://127.0.1.1:1/port-behind-a-link": "http://127.0.1.1:1/port-behind-a-link",
    "/link-to?http://127.0.0.1:INNER/behind-a-link": "http://127.0.0.1:INNER/behind-a-link",
    "/link-to?file:///etc/shadow": "",
    "/base-on?http://127.0.0.1:INNER/dir/": "http://127.0.0.1:INNER/dir/inside",
    "/base-on?http://127.0.1.1:1/": "http://127.0.1.1:1/inside",
}


# Sites without end: the rule that leaves them, and the most requests they get with a fourth of the default limit.
EQUAL_PAGES = 50
TRAPS = {
    "/calendar/": ("equal_pages", 800),
    "/session/": ("equal_pages", 400),
    "/letters/": ("equal_pages", 800),  # session ids that look like words: no two pages of one shape
    "/token/": ("equal_pages", 400),
    "/jsession/": ("merged", 20),
    "/sid/": ("merged", 20),
    "/shop": ("facets", 1_000),
    "/equal/": ("equal_pages", 500),
}


def endings_of(outcome: Outcome, table: Iterable[str]) -> dict[str, str]:
    return {name: name_of(outcome.fates[name]) for name in table}


def wrong(outcome: Outcome, table: Mapping[str, str]) -> dict[str, str]:
    """Those of a table that ended under another name than one of theirs."""
    return {name: end for name, end in endings_of(outcome, table).items() if end not in table[name].split()}


def check_bounds(outcome: Outcome) -> None:
    """Bounded memory, every task has an end, and the good host is crawled whole. A crawl that takes longer than SECONDS
    has failed before."""
    assert 0 < outcome.peak_bytes < MOST_MEMORY
    assert outcome.progress is not None
    assert outcome.progress.is_finished
    assert outcome.progress.known == outcome.progress.done + outcome.progress.dead
    assert outcome.expected - outcome.texts.keys() == set()


def test_the_tables_have_every_behaviour_of_the_site() -> None:
    assert BEHAVIOURS.keys() <= ANSWERS.keys() | SLOW.keys()


async def test_nasty_answers_end_under_their_names(tmp_path: Path) -> None:
    for path in ANSWERS.keys() - BEHAVIOURS.keys():
        page_of(path)  # made before time is taken
    paths = {path: path for path in ANSWERS}
    found = await crawl_beside_a_good_host(tmp_path, paths, seconds=SECONDS, max_links=200)
    check_bounds(found)
    assert wrong(found, ANSWERS) == {}
    assert {path: found.texts[found.fates[path].url] for path in READ} == READ
    assert found.progress is not None
    # Of a page of a hundred thousand links some are taken.
    assert found.progress.rejected["too_many_links"] == 100_000 - 200
    assert found.progress.outcomes["redirect_loop"] == 2  # the one without an end, the one to itself


async def test_slow_answers_end_under_their_names(tmp_path: Path) -> None:
    # The good host is served by this process, too, beside hosts that send as fast as they can: it may answer late.
    deadlines = {"first_byte_seconds": 3.0, "idle_seconds": 3.0, "total_seconds": 5.0, "max_attempts": 2}
    found = await crawl_beside_a_good_host(tmp_path, {path: path for path in SLOW}, seconds=SECONDS, **deadlines)
    check_bounds(found)
    assert wrong(found, SLOW) == {}


async def test_redirects_end_where_they_lead_and_reach_no_server_behind_the_guard(tmp_path: Path) -> None:
    paths = {target: "/redirect-to?" + quote(target) for target in [*REDIRECTS, *UNUSABLE]}
    paths |= {path: path for path in OFF_HOST}
    ask = {target: f"http:{target}" if target.startswith("//") else target for target in REDIRECTS}
    ask |= {path: target for path, target in OFF_HOST.items() if target}
    found = await crawl_beside_a_good_host(tmp_path, paths, ask=ask, seconds=SECONDS)
    check_bounds(found)
    assert endings_of(found, REDIRECTS) == REDIRECTS
    assert {target: found.fates[target].state for target in REDIRECTS} == dict.fromkeys(REDIRECTS, "dead")
    # What no request can follow is counted by its rule, without a password.
    shown = {target: re.sub("//.*@", "//", target).replace("INNER", found.inner_port) for target in UNUSABLE}
    assert [target for target, reason in UNUSABLE.items() if shown[target] not in found.samples[reason]] == []
    assert endings_of(found, UNUSABLE) == dict.fromkeys(UNUSABLE, "redirected")
    # What a page leads to off its host is out of scope, a redirect behind a link to a file is kept out.
    led = {path: target.replace("INNER", found.inner_port) for path, target in OFF_HOST.items() if target}
    assert {path: (found.fates[path].state, name_of(found.fates[path])) for path in led} == dict.fromkeys(
        led, ("unknown", "out_of_scope")
    )
    assert set(led.values()) <= set(found.samples["out_of_scope"])
    assert "file:///etc/shadow" in found.samples["scheme"]
    assert found.inner_requests == []
    assert "hunter2" not in found.output
    assert not any("hunter2" in sample for samples in found.samples.values() for sample in samples)


async def test_traps_are_left_after_few_pages_under_their_names(tmp_path: Path) -> None:
    limits = {"max_equal_pages": EQUAL_PAGES, "max_links": 3_000}
    found = await crawl_beside_a_good_host(tmp_path, {path: path for path in TRAPS}, seconds=SECONDS, **limits)
    check_bounds(found)
    asked = {path: len(found.requests[path]) for path in TRAPS}
    assert {path: number for path, number in asked.items() if not 10 < number <= TRAPS[path][1]} == {}
    assert [path for path, (reason, _) in TRAPS.items() if not is_named(found, found.fates[path].lane, reason)] == []


def is_named(outcome: Outcome, host: str, reason: str) -> bool:
    """Whether a host's pages were left for this reason."""
    assert outcome.progress is not None
    # Of what is merged a few samples are kept for all hosts together: which ones is not said.
    counted = outcome.progress.rejected.get(reason) if reason == "merged" else None
    return bool(
        counted or outcome.dead.get((host, reason)) or any(host in url for url in outcome.samples.get(reason, ()))
    )


class Everything(Spider):
    name = "everything"

    def parse(self, page: Page) -> Iterator[Any]:
        yield Item(key=page.url, title=page.text("title"), words=len(page.text().split()))
        yield page.follow()


async def crawl_all(db: Path, start: list[str], **settings: Any) -> tuple[Progress, dict[str, str], set[str]]:
    """The counters at the end, each URL's ending, and the keys of the items."""
    spider = Everything()
    spider.start = start  # type: ignore[misc]  # an instance may have a start of its own
    values = settings_of(Everything, {**LIMITS, "allow_private": True, **settings}).values
    async with opened(Places(frontier=str(db), store=str(db))) as (frontier, store):
        crawl, _ = await begin(frontier, spider, settings=values, reference="none")
        intake = intake_of(crawl)
        await feed(frontier, crawl.id, requests_of(spider), intake=intake, max_pending=10**6, say=print)
        await frontier.set_feeding(crawl.id, "feeder", seconds=0)
        async with worker_for(crawl, spider, frontier=frontier, store=store, say=print) as worker:
            async with asyncio.timeout(SECONDS):
                await worker.run(asyncio.Event())
        rows = await store.fetches(crawl.id, [intake.rules.resolve(url).key for url in start])
        endings = {row.url: row.outcome for row in rows}
        for letter in await frontier.dead(crawl.id, DeadFilter(), limit=1000):
            assert letter.reason.partition(":")[0] == endings.get(letter.task.url, letter.reason.partition(":")[0])
        items = {item.key async for item in store.items(ItemFilter(spider="everything"))}
        return await frontier.progress(crawl.id), endings, items


@pytest.mark.parametrize(
    "tag", [b"<div>", b"<b>", b"<table><tr><td>", b"<ul><li>", b"<template>", b"<svg>", b"<font a=%d><p>"]
)
async def test_ten_megabytes_of_nested_tags_are_a_dead_letter_in_a_moment(tmp_path: Path, tag: bytes) -> None:
    parts = (tag % number if b"%d" in tag else tag for number in range(10 * 1024 * 1024 // (len(tag) + 6)))
    body = b"".join(parts)
    site = await asyncio.start_server(_always(body), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{site.sockets[0].getsockname()[1]}/"
    began, before = time.process_time(), resident_bytes()
    async with site:
        progress, endings, _ = await crawl_all(
            tmp_path / "shoal.db", [url], max_body_bytes=10 * 1024 * 1024, total_seconds=10.0
        )
    assert endings == {url: "too_complex"}
    assert (progress.dead, progress.retried) == (1, 0)
    assert time.process_time() - began < 5.0
    assert resident_bytes() - before < MOST_GROWTH


def _always(body: bytes) -> Any:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    return answer
