"""What `shoal why` says of a URL in each of its spellings, and of one that its crawl has forgotten."""

from __future__ import annotations

import msgspec
import pytest

from shoal.cli.commands.why import sentence
from shoal.cli.url_fate import fate_of
from shoal.key_forms import KEY_RULES
from shoal.model import Crawl, Done, TaskState
from shoal.processes.crawl_record import CrawlRecord, url_rules_of
from shoal.settings import Settings
from shoal.store.base import FetchRow
from shoal.testing.clock import FakeClock
from shoal.testing.fakes import MemoryStore, task_for
from shoal.testing.model.memory_frontier import MemoryFrontier
from shoal.urls import named_key, spelling_names

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
    fate = await fate_of(PAGE, [crawl], frontier=frontier, store=store)
    assert sentence(fate) == "done: ok"
    clock.advance(150.0)
    fate = await fate_of(PAGE, [crawl], frontier=frontier, store=store)
    assert (fate.state, fate.fetch) == (TaskState.UNKNOWN, row)
    assert sentence(fate).startswith("was done (ok) and is forgotten since")
    never = await fate_of("https://a.test/never", [crawl], frontier=frontier, store=store)
    assert sentence(never).startswith("never found")


@pytest.mark.parametrize(
    "spelling", ["?f%5Ba%5D=x%20y", "?f[a]=x+y", "index.html?f[a]=x%20y&utm_source=z", "?f%5ba]=x y#top"]
)
async def test_a_task_is_found_by_every_spelling_of_its_url(spelling: str) -> None:
    frontier, store = MemoryFrontier(clock=FakeClock()), MemoryStore()
    settings = Settings(same_page=("index",))
    record = CrawlRecord(settings=settings, start_lanes=["a.test"], key_rules=KEY_RULES)
    crawl = await frontier.open_crawl(Crawl(id="c", spider="s", settings=msgspec.to_builtins(record)))
    taken = "https://a.test/list/?f%5Ba%5D=x+y"
    link = url_rules_of(crawl).resolve(taken)
    await frontier.put("c", [msgspec.structs.replace(task_for(taken), key=link.key)])
    fate = await fate_of(f"https://a.test/list/{spelling}", [crawl], frontier=frontier, store=store)
    assert (fate.state, fate.merged_with) == (TaskState.QUEUED, taken)


async def test_a_spelling_that_a_redirect_led_to_is_a_task_of_its_own() -> None:
    frontier, store = MemoryFrontier(clock=FakeClock()), MemoryStore()
    record = CrawlRecord(settings=Settings(same_page=("trailing_slash",)), start_lanes=["a.test"], key_rules=KEY_RULES)
    crawl = await frontier.open_crawl(Crawl(id="c", spider="s", interval=0.0, settings=msgspec.to_builtins(record)))
    first = task_for(PAGE)
    await frontier.put("c", [first])
    (lease,) = (await frontier.lease(["c"], 1, worker="w", seconds=10.0, horizon=0.0)).leases
    hop = msgspec.structs.replace(task_for(f"{PAGE}/"), key=named_key(spelling_names(first.key, f"{PAGE}/")[0]))
    await frontier.settle([Done(lease=lease, outcome="redirected", found=[hop])])
    states = [(await fate_of(url, [crawl], frontier=frontier, store=store)).state for url in (PAGE, f"{PAGE}/")]
    assert states == [TaskState.DONE, TaskState.QUEUED]
