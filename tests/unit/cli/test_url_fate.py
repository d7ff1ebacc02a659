"""What `shoal why` says of a URL: in each spelling, forgotten by its crawl, or of several tasks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.cli.display.numbers import key_given, key_shown
from shoal.cli.why import sentence
from shoal.crawl.record import CrawlRecord, url_rules_of
from shoal.errors import UsageError
from shoal.insight.why import TASKS_SHOWN, Choice, Fate, document, fate_of, fates_of
from shoal.journey.results import request_of
from shoal.model import Crawl, Dead, Done, Pool, Task, TaskState
from shoal.settings.table import Settings
from shoal.store.base import FetchRow
from shoal.testing.clock import FakeClock
from shoal.testing.fakes import store_for_all, task_for
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.testing.memory_store import MemoryStore
from shoal.text.secrets import MASK
from shoal.urls.canonical import key_of, named_key, spelling_names

PAGE = "https://a.test/page"


async def test_a_url_that_expired_was_done_and_may_be_met_again() -> None:
    clock = FakeClock()
    frontier, store = MemoryFrontier(clock=clock), MemoryStore()
    record = msgspec.to_builtins(CrawlRecord(settings=Settings(), start_lanes=["a.test"]))
    crawl = await frontier.open_crawl(Crawl(id="c", spider="s", interval=0.0, dedup_ttl=100.0, settings=record))
    task = task_for(PAGE)
    await frontier.put("c", [task])
    (lease,) = (await frontier.lease(["c"], 1, worker="w", seconds=10.0, horizon=0.0)).leases
    row = FetchRow(crawl="c", key=task.key, url=PAGE, outcome="ok", token=lease.token, attempt=1, at=clock())
    await store.write([], [row])
    await frontier.settle([Done(lease=lease)])
    fate = await fate_of(PAGE, [crawl], frontier=frontier, store_of=store_for_all(store))
    assert sentence(fate) == "done: ok"
    clock.advance(150.0)
    fate = await fate_of(PAGE, [crawl], frontier=frontier, store_of=store_for_all(store))
    assert (fate.state, fate.fetch) == (TaskState.UNKNOWN, row)
    assert sentence(fate).startswith("was done (ok) and is forgotten since")
    never = await fate_of("https://a.test/never", [crawl], frontier=frontier, store_of=store_for_all(store))
    assert sentence(never).startswith("never found")


async def test_of_a_crawl_whose_keys_were_dropped_the_log_tells_and_of_what_was_skipped_the_record() -> None:
    frontier, store = MemoryFrontier(clock=FakeClock()), MemoryStore()
    record = CrawlRecord(settings=Settings(), start_lanes=["a.test"])
    await frontier.open_crawl(Crawl(id="c", spider="s", interval=0.0, settings=msgspec.to_builtins(record)))
    await frontier.put("c", [task_for(PAGE)])
    (lease,) = (await frontier.lease(["c"], 1, worker="w", seconds=10.0, horizon=0.0)).leases
    row = FetchRow(crawl="c", key=lease.task.key, url=PAGE, outcome="ok", token=lease.token, attempt=1, at=0.0)
    await store.write([], [row])
    await frontier.settle([Done(lease=lease)])
    await frontier.lease(["c"], 1, worker="w", seconds=10.0, horizon=0.0)
    await frontier.drop_keys("c")
    (crawl,) = await frontier.crawls()
    fate = await fate_of(PAGE, [crawl], frontier=frontier, store_of=store_for_all(store))
    assert (sentence(fate), fate.state, fate.fetch) == ("done: ok", TaskState.DONE, row)
    other = await fate_of("https://a.test/other", [crawl], frontier=frontier, store_of=store_for_all(store))
    assert sentence(other).startswith("not known any more: the crawl has forgotten its URLs since its end (known_ttl)")
    settings = msgspec.to_builtins(msgspec.structs.replace(record, skips_known=True))
    skipping = await frontier.open_crawl(Crawl(id="d", spider="s", interval=0.0, settings=settings))
    await frontier.know("d", [lease.task.key])
    fate = await fate_of(PAGE, [skipping, crawl], frontier=frontier, store_of=store_for_all(store))
    assert sentence(fate) == "not fetched: an earlier crawl of the spider has done it (--skip-known)"


async def test_a_page_that_was_lost_with_its_worker_says_so() -> None:
    frontier, store = MemoryFrontier(clock=FakeClock()), MemoryStore()
    record = msgspec.to_builtins(CrawlRecord(settings=Settings(), start_lanes=["a.test"]))
    crawl = await frontier.open_crawl(Crawl(id="c", spider="s", interval=0.0, settings=record))
    await frontier.put("c", [task_for(PAGE)])

    async def told() -> str:
        return sentence(await fate_of(PAGE, [crawl], frontier=frontier, store_of=store_for_all(store)))

    async def lent() -> int:
        (lease,) = (await frontier.lease(["c"], 1, worker="w", seconds=10.0, horizon=0.0)).leases
        return lease.token

    waits = "queued: it waits for its turn in its lane"
    assert await told() == waits
    await lent()
    await frontier.evict("w")
    assert await told() == f"{waits}; it was lost with its worker before"
    await frontier.evict("w", suspects=[await lent()], cause="SIGSEGV")
    assert await told() == f"{waits}; it was lost with its worker before (SIGSEGV), so it is leased alone"
    await lent()
    told_now = await told()
    assert (
        told_now == "in flight, attempt 1, with w; it was lost with its worker before (SIGSEGV), so it is leased alone"
    )


@pytest.mark.parametrize(
    "spelling", ["?f%5Ba%5D=x%20y", "?f[a]=x+y", "index.html?f[a]=x%20y&utm_source=z", "?f%5ba]=x y#top"]
)
async def test_a_task_is_found_by_every_spelling_of_its_url(spelling: str) -> None:
    frontier, store = MemoryFrontier(clock=FakeClock()), MemoryStore()
    settings = Settings(same_page=("index",))
    record = CrawlRecord(settings=settings, start_lanes=["a.test"])
    crawl = await frontier.open_crawl(Crawl(id="c", spider="s", settings=msgspec.to_builtins(record)))
    taken = "https://a.test/list/?f%5Ba%5D=x+y"
    link = url_rules_of(crawl).resolve(taken)
    await frontier.put("c", [msgspec.structs.replace(task_for(taken), key=link.key)])
    fate = await fate_of(f"https://a.test/list/{spelling}", [crawl], frontier=frontier, store_of=store_for_all(store))
    assert (fate.state, fate.merged_with) == (TaskState.QUEUED, taken)


async def test_a_spelling_that_a_redirect_led_to_is_a_task_of_its_own() -> None:
    frontier, store = MemoryFrontier(clock=FakeClock()), MemoryStore()
    record = CrawlRecord(settings=Settings(same_page=("trailing_slash",)), start_lanes=["a.test"])
    crawl = await frontier.open_crawl(Crawl(id="c", spider="s", interval=0.0, settings=msgspec.to_builtins(record)))
    first = task_for(PAGE)
    await frontier.put("c", [first])
    (lease,) = (await frontier.lease(["c"], 1, worker="w", seconds=10.0, horizon=0.0)).leases
    hop = msgspec.structs.replace(task_for(f"{PAGE}/"), key=named_key(spelling_names(first.key, f"{PAGE}/")[0]))
    await frontier.settle([Done(lease=lease, outcome="redirected", found=[hop])])
    states = [
        (await fate_of(url, [crawl], frontier=frontier, store_of=store_for_all(store))).state
        for url in (PAGE, f"{PAGE}/")
    ]
    assert states == [TaskState.DONE, TaskState.QUEUED]


class Asked:
    """A crawl in memory, and what becomes of its tasks of one URL."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.frontier, self.store = MemoryFrontier(clock=self.clock), MemoryStore()
        record = msgspec.to_builtins(CrawlRecord(settings=Settings(), start_lanes=["a.test"]))
        pool = Pool(name="ring", exits=("ring/x",), interval=0.0, cap=99)
        self.crawl = Crawl(id="c", spider="s", interval=0.0, cap=999, settings=record, pools=(pool,))

    async def put(self, **fields: Any) -> Task:
        await self.frontier.open_crawl(self.crawl)
        key = key_of(PAGE, method=fields.get("method", "GET"), body=fields.get("body"))
        task = task_for(PAGE, **{"key": key, "created": self.clock(), **fields})
        await self.frontier.put("c", [task])
        self.clock.advance(1.0)
        return task

    async def work(self, *, dead: str = "") -> None:
        """Fetch what is due; it is done, or dead with this reason."""
        for lease in (await self.frontier.lease(["c"], 999, worker="w", seconds=10.0, horizon=0.0)).leases:
            line = FetchRow(
                crawl="c", key=lease.task.key, url=PAGE, outcome=dead or "ok", token=lease.token, attempt=1,
                at=self.clock(), exit=lease.exit, request=request_of(lease.task),
            )  # fmt: skip
            await self.store.write([], [line])
            await self.frontier.settle([Dead(lease=lease, reason=dead) if dead else Done(lease=lease)])

    async def fates(self, **choice: Any) -> list[Fate]:
        return await fates_of(
            PAGE, [self.crawl], frontier=self.frontier, store_of=store_for_all(self.store), choice=Choice(**choice)
        )


async def test_finds_tasks_of_all_methods_bodies_and_pools_in_every_state() -> None:
    asked = Asked()
    await asked.put()
    await asked.put(method="POST", body=b"q=1")
    await asked.work()
    await asked.put(method="PUT", body=b"secret")
    await asked.work(dead="http_500")
    await asked.put(method="POST", body=b"q=2", delay=5.0)
    await asked.put(key=77, lane="a.test via ring", pool="ring")
    found = [(fate.request.partition(" ")[0], fate.pool, fate.state, fate.is_plain) for fate in await asked.fates()]
    assert found[0] == ("GET", "direct", "done", True)
    assert sorted(found[1:]) == [
        ("GET", "ring", "queued", False),
        ("POST", "direct", "delayed", False),
        ("POST", "direct", "done", False),
        ("PUT", "direct", "dead", False),
    ]
    requests = {fate.request for fate in await asked.fates()}
    assert len(requests) == 4  # both GETs read the same, every body has a hash of its own
    assert not any("secret" in request for request in requests)


async def test_a_url_that_only_a_post_has_is_known() -> None:
    asked = Asked()
    task = await asked.put(method="POST", body=b"q=1")
    await asked.work()
    (fate,) = await asked.fates()
    assert (fate.state, fate.key, fate.request) == (TaskState.DONE, task.key, request_of(task))
    assert sentence(fate) == "done: ok"


async def test_a_chosen_task_is_found_among_many_of_its_url() -> None:
    asked = Asked()
    first = await asked.put(key=5, method="POST")
    for number in range(100, 150):
        await asked.put(key=number)
    await asked.work()
    assert len(await asked.fates()) == TASKS_SHOWN + 1
    assert first.key not in [fate.key for fate in await asked.fates()]
    assert (await asked.fates(key=5))[0].key == 5
    assert (await asked.fates(method="POST"))[0].key == 5


async def test_the_request_of_a_done_task_with_a_key_of_its_own_is_known_by_its_line_in_the_log() -> None:
    asked = Asked()
    await asked.put(key=5)
    await asked.put(key=6, method="POST")
    await asked.work()
    assert sorted(fate.request for fate in await asked.fates()) == ["GET", "POST"]


@pytest.mark.parametrize("key", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_a_key_is_read_as_it_is_shown(key: int) -> None:
    assert len(key_shown(key)) == 16
    assert key_given(key_shown(key)) == key


@pytest.mark.parametrize("text", ["", "xyz", "-1", "1" * 17])
def test_refuses_what_is_no_key(text: str) -> None:
    with pytest.raises(UsageError, match="is no key"):
        key_given(text)


async def test_a_document_shows_no_bytes_of_a_task() -> None:
    """They may be cookies and headers that an integration keeps."""
    asked = Asked()
    await asked.put(meta={"page": 2, "cookies": b"session=secret"}, body=b"word=secret", method="POST")
    (fate,) = await asked.fates()
    shown = document(fate)
    assert shown["task"]["task"][10] == {"page": 2, "cookies": MASK}
    assert "secret" not in str(shown)
