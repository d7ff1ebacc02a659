"""Whether a crawl has room for what people add."""

from __future__ import annotations

from shoal.crawl.adding import has_room
from shoal.model import Crawl, CrawlState, Task
from shoal.testing.clock import FakeClock
from shoal.testing.memory_frontier import MemoryFrontier


async def test_a_cancelled_crawl_has_no_more_room_than_it_had() -> None:
    frontier = MemoryFrontier(clock=FakeClock())
    await frontier.open_crawl(Crawl(id="c", spider="s"))
    await frontier.put("c", [Task(url=f"https://a.test/{key}", key=key, lane="a.test") for key in (1, 2, 3)])
    for state in (CrawlState.RUNNING, CrawlState.CANCELLED):
        await frontier.set_state("c", state)
        assert [await has_room("c", frontier=frontier, max_pending=most) for most in (3, 4)] == [False, True]
