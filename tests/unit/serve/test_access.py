"""Tokens, sessions and wrong tokens, by a clock that moves when told to."""

from __future__ import annotations

import pytest

from shoal.errors import UsageError
from shoal.serve.access import MOST_CLIENTS, MOST_SESSIONS, SESSION_SECONDS, TRIES, Access, is_loopback, is_wildcard
from shoal.testing.clock import FakeClock

TOKEN, READER = "a-token-of-some-length", "another-token-that-reads"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def access(clock: FakeClock) -> Access:
    return Access(token=TOKEN, reader_token=READER, hosts=["Shoal.Example.com", "[2001:db8::1]"], clock=clock)


def test_knows_its_tokens_and_no_others(access: Access) -> None:
    assert (access.role_of(TOKEN), access.role_of(READER)) == ("admin", "reader")
    for wrong in ("", TOKEN[:-1], f"{TOKEN} ", TOKEN.upper(), "\udcff", "é" * 20):
        assert access.role_of(wrong) is None


def test_a_session_ends_with_its_time_or_when_signed_out(access: Access, clock: FakeClock) -> None:
    first, second = access.sign_in("admin"), access.sign_in("reader")
    assert (access.session_role(first), access.session_role(second)) == ("admin", "reader")
    access.sign_out(first)
    assert (access.session_role(first), access.session_role(second)) == (None, "reader")
    clock.advance(SESSION_SECONDS)
    assert access.session_role(second) is None
    assert access.session_role("") is None


def test_sessions_and_callers_are_kept_in_bounded_memory(access: Access) -> None:
    first = access.sign_in("admin")
    for _ in range(MOST_SESSIONS):
        access.sign_in("reader")
    assert access.session_role(first) is None
    for number in range(MOST_CLIENTS + 10):
        access.tries.count(str(number))
    assert len(access.tries._wrong) == MOST_CLIENTS


def test_a_caller_waits_after_many_wrong_tokens(access: Access, clock: FakeClock) -> None:
    for _ in range(TRIES - 1):
        access.tries.count("a")
    assert access.tries.wait("a") == 0.0
    clock.advance(20.0)
    access.tries.count("a")
    assert (access.tries.wait("a"), access.tries.wait("b")) == (40.0, 0.0)
    clock.advance(40.0)
    assert access.tries.wait("a") == 0.0


def test_knows_the_names_by_which_it_is_reached(access: Access) -> None:
    for name in ("localhost", "127.0.0.1", "::1", "shoal.example.com", "2001:db8::1"):
        assert access.knows_host(name)
    for name in ("", "example.com", "shoal.example.com.evil.test", "10.0.0.1"):
        assert not access.knows_host(name)
    assert Access(token=TOKEN, any_address=True).knows_host("10.0.0.1")
    assert not Access(token=TOKEN, any_address=True).knows_host("evil.test")


def test_loopback_is_what_no_other_machine_reaches() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com", "", "localhost.example.com")))
    assert all(map(is_wildcard, ("0.0.0.0", "::")))


def test_refuses_tokens_that_are_none() -> None:
    for token, reader in (("short", ""), (TOKEN, TOKEN), ("a token with spaces", ""), ("", "ä" * 20)):
        with pytest.raises(UsageError):
            Access(token=token, reader_token=reader)
