"""The journey of one leased task under robots.txt: how a lane is opened, and what its rules keep out."""

from __future__ import annotations

from scripted_journey import URL, ScriptedJourney, redirect

from shoal.fetch.base import FaultKind
from shoal.journey.results import Finished
from shoal.journey.robots import MOST_FAILURES
from shoal.model import Crawl, Done, LaneUpdate, Released, Retry
from shoal.policy.politeness import lent_interval
from shoal.testing.fakes import fault, lease_for, respond


async def test_what_robots_txt_forbids_is_not_fetched() -> None:
    scripted = await ScriptedJourney(needs_rules=True).with_rules(b"user-agent:*\ndisallow:/page")
    finished = await scripted.take(lease_for(URL))
    assert isinstance(finished.result, Done)
    assert (finished.result.outcome, finished.result.rejected) == ("robots", {"robots": 1})
    assert finished.result.samples == [("robots", URL)]
    assert finished.fetch is not None
    assert finished.fetch.outcome == "robots"
    assert scripted.fetcher.requests == []


async def test_links_that_robots_txt_forbids_never_become_tasks() -> None:
    body = "<a href=/private/1></a><a href=/open></a>"
    scripted = await ScriptedJourney({URL: respond(URL, body)}, needs_rules=True).with_rules(
        b"user-agent:*\ndisallow:/private"
    )
    finished = await scripted.take(lease_for(URL))
    assert isinstance(finished.result, Done)
    assert [task.url for task in finished.result.found] == ["https://a.test/open"]
    assert finished.result.rejected == {"robots": 1}


async def test_a_search_goes_no_faster_than_a_crawl_delay() -> None:
    settings = {"pace": "search", "rate": "4/s", "max_rate": "50/s"}
    scripted = await ScriptedJourney({URL: respond(URL)}, needs_rules=True, **settings).with_rules(
        b"user-agent:*\ncrawl-delay: 0.1"
    )
    fast = lease_for(URL, interval=lent_interval(1 / 20), base_interval=lent_interval(1 / 4))
    finished = await scripted.take(fast)
    assert isinstance(finished.result, Done)
    assert finished.result.lane is not None
    assert finished.result.lane.interval == lent_interval(0.1)
    without_rules = ScriptedJourney({URL: respond(URL)}, **settings)
    assert (await without_rules.take(fast)).result.lane is None


async def test_a_lease_whose_rules_ran_out_is_handed_back_not_fetched() -> None:
    scripted = await ScriptedJourney({URL: respond(URL)}, needs_rules=True).with_rules(
        b"user-agent:*\ndisallow:/", seconds=0.0
    )
    finished = await scripted.take(lease_for(URL))
    assert isinstance(finished.result, Released)
    assert scripted.fetcher.requests == []


async def test_rules_made_to_be_slow_do_not_stop_the_worker_over_a_page_of_many_links() -> None:
    links = "".join(f"<a href=/{'a' * 1500}{number}>x</a>" for number in range(9000))
    slow = b"".join(b"disallow:/%s%d$\n" % (b"*a" * 200, number) for number in range(3000, 3500))
    scripted = await ScriptedJourney({URL: respond(URL, links)}, needs_rules=True).with_rules(
        b"user-agent:*\nallow:/page\ndisallow:/\n" + slow
    )
    result = (await scripted.take(lease_for(URL, rules_version=1))).result
    assert isinstance(result, Done)
    assert 0 < result.rejected["robots"] < 9000
    # They are all forbidden; what was not held against the rules here meets them when it is leased.
    assert len(result.found) == 9000 - result.rejected["robots"]


async def test_opening_a_lane_fetches_robots_txt_and_hands_the_page_back() -> None:
    robots = respond("https://a.test/robots.txt", "User-agent: *\nDisallow: /x\nCrawl-delay: 9", kind="text/plain")
    scripted = ScriptedJourney({"https://a.test/robots.txt": robots}, needs_rules=True)
    finished = await scripted.take(lease_for(URL, opens_lane=True, interval=1.0))
    assert isinstance(finished.result, Released)
    update = finished.result.lane
    assert update is not None
    assert update.rules is not None
    assert b"disallow:/x" in update.rules
    assert (update.interval, update.base_interval, update.rules_seconds) == (
        lent_interval(9.0),
        lent_interval(9.0),
        86_400.0,
    )
    assert update.why == "robots.txt has Crawl-delay 9 s"
    assert [request.url for request in scripted.fetcher.requests] == ["https://a.test/robots.txt"]
    assert (finished.items, finished.fetch) == ((), None)


async def test_a_robots_txt_that_cannot_be_had_rests_the_lane_and_is_asked_for_again() -> None:
    scripted = ScriptedJourney({"https://a.test/robots.txt": respond(URL, status=503)}, needs_rules=True)
    finished = await scripted.take(lease_for(URL, opens_lane=True))
    assert isinstance(finished.result, Retry)
    assert (finished.result.free, finished.result.reason) == (True, "robots.txt: http_503")
    assert finished.result.lane is not None
    assert (finished.result.lane.rules, finished.result.lane.rest_seconds) == (None, finished.result.delay)
    assert finished.result.lane.why == "robots.txt could not be read (503)"


async def test_a_lane_that_rests_for_its_robots_txt_names_the_fault_without_its_message() -> None:
    failed = fault(FaultKind.TIMEOUT_TOTAL, "https://a.test/robots.txt?token=secret took too long")
    scripted = ScriptedJourney({"https://a.test/robots.txt": failed}, needs_rules=True)
    result = (await scripted.take(lease_for(URL, opens_lane=True))).result
    assert result.lane is not None
    assert result.lane.why == "robots.txt could not be read (timeout_total)"


async def test_the_rules_of_a_lane_are_at_hand_before_its_page_may_start() -> None:
    scripted = await ScriptedJourney({}, needs_rules=True).with_rules(b"user-agent:*\ndisallow:/x")
    await scripted.journey.prepare(lease_for(URL, rules_version=1))
    assert scripted.rules.cached("a.test") is not None


async def opened_by_redirect(scripted: ScriptedJourney) -> Released | Retry:
    finished = await scripted.take(lease_for(URL, opens_lane=True))
    assert isinstance(finished.result, Released | Retry)
    return finished.result


def journey_with_robots_txt_elsewhere() -> ScriptedJourney:
    moved = redirect("https://slow.test/robots.txt", url="https://a.test/robots.txt")
    return ScriptedJourney({"https://a.test/robots.txt": moved}, needs_rules=True)


async def test_a_robots_txt_at_a_host_with_no_slot_soon_is_not_waited_for() -> None:
    scripted = await journey_with_robots_txt_elsewhere().with_rules(b"")
    await scripted.frontier.update_lane("c", "slow.test", LaneUpdate(interval=300.0, base_interval=300.0))
    await scripted.frontier.reserve("c", "slow.test")
    result = await opened_by_redirect(scripted)
    assert isinstance(result, Retry)
    assert (result.free, result.reason) == (True, "robots.txt: redirects to a busy host")
    assert 200 < result.delay <= 300
    assert [request.url for request in scripted.fetcher.requests] == ["https://a.test/robots.txt"]


async def test_a_robots_txt_at_a_host_whose_rules_are_known_is_not_asked_for_again() -> None:
    scripted = await journey_with_robots_txt_elsewhere().with_rules(b"")
    known = LaneUpdate(rules=b"user-agent:*\ndisallow:/x\ncrawl-delay:7", rules_seconds=60.0, interval=300.0)
    await scripted.frontier.update_lane("c", "slow.test", known)
    result = await opened_by_redirect(scripted)
    assert isinstance(result, Released)
    assert result.lane is not None
    assert (result.lane.rules, result.lane.interval) == (known.rules, lent_interval(7.0))
    assert len(scripted.fetcher.requests) == 1


async def test_of_long_rules_on_many_hosts_only_some_are_kept_in_memory() -> None:
    scripted = ScriptedJourney(needs_rules=True)
    await scripted.frontier.open_crawl(Crawl(id="c", spider="plain", needs_rules=True))
    rules = b"user-agent:*\n" + b"".join(b"disallow:/%d/%s\n" % (number, b"x" * 80) for number in range(2_000))
    urls = [f"https://h{number}.test/" for number in range(80)]
    for url in urls:
        await scripted.frontier.update_lane("c", url[8:-1], LaneUpdate(rules=rules, rules_seconds=60.0))
        await scripted.take(lease_for(url, rules_version=1))
    kept = [url for url in urls if scripted.rules.cached(url[8:-1]) is not None]
    assert 10 < len(kept) < 70
    assert kept == urls[-len(kept) :]


async def test_a_robots_txt_that_can_never_be_had_closes_the_lane() -> None:
    scripted = ScriptedJourney({"https://a.test/robots.txt": respond(URL, status=503)}, needs_rules=True)
    finished = await scripted.take(lease_for(URL, opens_lane=True, free_retries=MOST_FAILURES))
    assert isinstance(finished.result, Released)
    assert finished.result.lane is not None
    assert finished.result.lane.rules is not None
    closed = await ScriptedJourney({URL: respond(URL)}, needs_rules=True).with_rules(finished.result.lane.rules)
    ended = await closed.take(lease_for(URL))
    assert isinstance(ended.result, Done)
    assert (ended.result.outcome, closed.fetcher.requests) == ("robots_unavailable", [])


async def test_a_crawl_delay_faster_than_the_pace_changes_nothing() -> None:
    robots = respond(URL, "User-agent: *\nCrawl-delay: 1", kind="text/plain")
    scripted = ScriptedJourney({"https://a.test/robots.txt": robots}, needs_rules=True)
    finished = await scripted.take(lease_for(URL, opens_lane=True, interval=5.0))
    assert finished.result.lane is not None
    assert finished.result.lane.interval is None


async def test_a_shortage_while_a_lane_is_opened_leaves_lane_and_task_as_they_are() -> None:
    robots = "https://a.test/robots.txt"
    scripted = ScriptedJourney({robots: fault(FaultKind.SHORTAGE)}, needs_rules=True)
    lease = lease_for(URL, opens_lane=True, free_retries=MOST_FAILURES)
    finished = await scripted.take(lease)
    assert finished == Finished(Released(lease=lease))
