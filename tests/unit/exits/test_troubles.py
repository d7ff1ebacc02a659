"""The troubles of a worker: each said once, kept while it lasts, few and short."""

from __future__ import annotations

import math

from shoal.exits.refusals import LOGGED_OUT, ExitRefusal
from shoal.exits.troubles import (
    KEPT_SECONDS,
    LONGEST_LINE,
    MOST_LINES,
    Troubles,
    is_trouble,
    trouble_of,
    trouble_of_family,
    trouble_of_unsent,
)
from shoal.fetch.base import Response
from shoal.fetch.descriptors import trouble_of_shortage
from shoal.fetch.exits import ExitConfig
from shoal.testing.clock import FakeClock

ANNA = ExitConfig(name="shop/anna", kind="account", fields={"name": "anna", "password": "s3cret"})
KEY = ExitConfig(name="api/first", kind="key", headers={"X-Key": "s3cret"}, hosts=("https://api.test/",))
PROXY = ExitConfig(name="ring/10.0.0.1:80", kind="proxy", url="http://user:s3cret@10.0.0.1:80")


def refusal(outcome: str, reason: str, *, is_certain: bool = True) -> ExitRefusal:
    return ExitRefusal(kind="failed", outcome=outcome, reason=f"{outcome}: {reason}", is_certain=is_certain)


def test_a_refusal_is_a_trouble_if_it_is_the_exits_own() -> None:
    told = trouble_of(ANNA, refusal("login", "shop/anna: LoginRefused: the spider's login returned False"))
    assert told == "login refused: shop/anna: the spider's login returned False"
    assert trouble_of(ANNA, refusal("login", LOGGED_OUT)) == "login refused: shop/anna: logged out at once"
    raised = trouble_of(ANNA, refusal("login", "shop/anna: ValueError: no token"))
    assert raised == "login failed: shop/anna: ValueError: no token"
    down = trouble_of(PROXY, refusal("exit", "ring/10.0.0.1:80: connection refused"))
    assert down == "proxy ring/10.0.0.1:80 is down: connection refused"
    locked = trouble_of(PROXY, refusal("exit", "ring/10.0.0.1:80: it wants other credentials (407)", is_certain=False))
    assert locked == "proxy ring/10.0.0.1:80 fails: it wants other credentials (407)"
    assert trouble_of(PROXY, refusal("http_403", "http_403")) == ""
    unknown = trouble_of(KEY, refusal("http_401", "http_401"), host="api.test")
    assert unknown == "key refused: api/first: api.test answered 401"
    lines = (told, raised, down, locked, unknown, trouble_of_shortage("Too many open files"))
    assert all(is_trouble(line) for line in lines)
    assert not is_trouble("proxy servers are down: everywhere")


def test_an_address_of_another_kind_than_a_hosts_is_the_same_trouble_for_all_hosts() -> None:
    address = ExitConfig(name="region:eu/::1@fra-1", kind="address", address="::1")
    lines = {
        trouble_of_family(address, refusal("connect", f"{host} has no IPv6 address")) for host in ("a.test", "b.test")
    }
    assert lines == {"address region:eu/::1@fra-1 fails: some hosts have no IPv6 address"}
    assert is_trouble(*lines)
    assert trouble_of_family(address, refusal("connect", "refused", is_certain=False)) == ""


def test_a_page_that_is_refused_without_the_key_since_its_host_gets_none_is_a_trouble() -> None:
    def told(url: str, status: int) -> str:
        return trouble_of_unsent(KEY, Response(url=url, status=status, headers={}, body=b"", wire_size=0, elapsed=0.0))

    line = "key not sent: api/first: http://api.test answered 401 and is none of its hosts (https://api.test)"
    assert told("http://api.test/v1/items", 401) == line
    assert is_trouble(line)
    assert told("https://api.test/v1/items", 401) == told("http://api.test/v1/items", 200) == ""


def test_a_trouble_is_said_once_and_ends_when_its_exit_works() -> None:
    said: list[str] = []
    troubles = Troubles(said.append, clock=FakeClock())
    for _ in range(2):
        troubles.begin("ring/x", "proxy ring/x is down: refused")
    troubles.begin("ring/y", "proxy ring/y is down: refused")
    assert said == ["proxy ring/x is down: refused", "proxy ring/y is down: refused"]
    troubles.end("ring/x")
    assert troubles.lines() == ("proxy ring/y is down: refused",)
    troubles.begin("ring/y", "proxy ring/y is down: no route")
    assert len(said) == 3


def test_a_trouble_that_was_not_heard_of_for_long_is_forgotten() -> None:
    clock = FakeClock()
    troubles = Troubles(print, clock=clock)
    troubles.begin("ring/x", "x")
    clock.advance(KEPT_SECONDS - 1)
    troubles.begin("ring/x", "x")
    clock.advance(KEPT_SECONDS - 1)
    assert troubles.lines() == ("x",)
    clock.advance(2)
    assert troubles.lines() == ()


def test_a_shortage_is_forgotten_after_seconds_and_what_lasts_never() -> None:
    clock = FakeClock()
    troubles = Troubles(print, clock=clock)
    troubles.begin("this machine", "open files: all 256 are in use", seconds=10.0)
    troubles.begin("open files", "open files: 1 page at once", seconds=math.inf)
    clock.advance(11.0)
    assert troubles.lines() == ("open files: 1 page at once",)
    clock.advance(10 * KEPT_SECONDS)
    assert troubles.lines() == ("open files: 1 page at once",)


def test_troubles_are_few_and_short() -> None:
    said: list[str] = []
    troubles = Troubles(said.append)
    for number in range(50):
        troubles.begin(f"ring/{number}", f"{number} " + 500 * "x")
    assert len(troubles.lines()) == len(said) == MOST_LINES
    assert max(map(len, said)) == LONGEST_LINE
