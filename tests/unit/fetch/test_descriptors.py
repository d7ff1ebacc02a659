"""What connections need of this machine: the limit on open files, what it leaves for pages, what a shortage says."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator

import pytest

from shoal.fetch.descriptors import (
    FEWEST_IDLE,
    MOST_IDLE,
    MOST_WANTED,
    RESERVE,
    has_source,
    idle_within,
    is_shortage,
    is_used_up,
    open_count,
    open_limit,
    pages_within,
    raise_limit,
    trouble_of_shortage,
    within_limit,
)
from shoal.settings.table import Settings
from shoal.testing.few_files import few_files


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_is_raised_as_far_as_the_system_allows(limits: tuple[int, int]) -> None:
    hard = limits[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    assert open_limit() == 200
    raise_limit()
    assert open_limit() == (MOST_WANTED if hard == resource.RLIM_INFINITY else min(hard, MOST_WANTED))


def test_a_limit_that_is_higher_is_left_alone(limits: tuple[int, int]) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_limit()
    after = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert after[0] >= before[0] or after[0] == resource.RLIM_INFINITY
    assert after[1] == before[1]


@pytest.mark.parametrize("limit", [100, 256, 1024, 4096, 65_536])
@pytest.mark.parametrize("wanted", [1, 8, 32, 64, 500])
def test_pages_and_idle_connections_stay_within_the_limit(limit: int, wanted: int) -> None:
    pages = pages_within(limit, wanted)
    idle = idle_within(limit, pages)
    assert 1 <= pages <= wanted
    assert FEWEST_IDLE <= idle <= MOST_IDLE
    assert 2 * pages + idle <= max(limit - RESERVE, 2 * pages + FEWEST_IDLE)


def test_the_default_pages_fit_into_the_usual_limit() -> None:
    assert pages_within(1024, Settings().concurrency) == Settings().concurrency
    assert idle_within(1024, Settings().concurrency) > 800


def test_a_worker_takes_as_many_pages_as_it_has_descriptors_for_and_says_so(limits: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, limits[1]))
    settings, trouble = within_limit(Settings(concurrency=64))
    assert settings.concurrency == 18
    assert trouble == "open files: 18 pages at once instead of 64, as 100 allow; raise the limit with ulimit -n"
    assert within_limit(Settings(concurrency=8)) == (Settings(concurrency=8), "")


def test_open_files_are_counted() -> None:
    before = open_count()
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
    assert open_count() == before + 5
    for number in opened:
        os.close(number)


def test_a_process_without_a_free_descriptor_knows_it() -> None:
    assert not is_used_up()
    with few_files():
        assert is_used_up()


def test_a_process_knows_whether_as_many_descriptors_are_free_as_it_needs() -> None:
    before = open_count()
    with few_files(free=2):
        assert not is_used_up()
        assert is_used_up(needed=3)
    assert not is_used_up(needed=3)
    assert open_count() == before


def test_an_address_that_no_address_of_this_machine_reaches_is_told_from_a_lack_of_ports() -> None:
    assert has_source("127.0.0.1")
    assert has_source("proxy.test")
    assert not has_source("255.255.255.255")
    with few_files():
        assert has_source("127.0.0.1")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EMFILE, "open files: all"),
        (errno.ENFILE, "open files: all of the system are in use: raise fs.file-max"),
        (errno.EADDRNOTAVAIL, "ports: none is left for a new connection: widen net.ipv4.ip_local_port_range"),
        (errno.ENOBUFS, "memory: the system has none for a new connection: No buffer space available"),
    ],
)
def test_a_shortage_says_what_is_lacking_and_what_helps(number: int, said: str) -> None:
    line = trouble_of_shortage(f"{os.strerror(number)} (os error {number})")
    assert line.startswith(said)
    assert is_shortage(line)
