"""Waiting for a server: said once, however many parts of a process wait."""

from __future__ import annotations

from shoal.processes.outages import QUIET_SECONDS, SaidOnce

GONE = "cannot reach Redis at redis://host/0"


def test_parts_that_wait_for_one_server_say_so_once() -> None:
    said, now = list[str](), [0.0]
    say = SaidOnce(said.append, clock=lambda: now[0])
    for line in (f"{GONE}: refused; waiting", f"{GONE}: closed; waiting", "Redis is at maxmemory: raise it; waiting"):
        say(line)
    assert said == [f"{GONE}: refused; waiting", "Redis is at maxmemory: raise it; waiting"]
    now[0] = QUIET_SECONDS + 1
    say(f"{GONE}: refused; waiting")
    assert len(said) == 3


def test_other_lines_are_all_said() -> None:
    said: list[str] = []
    say = SaidOnce(said.append)
    for _ in range(2):
        say("worker a ended with SIGKILL")
    assert len(said) == 2
