"""What the cases with a pace say of the requests that a site saw."""

from __future__ import annotations

import pytest

from bench.cases import broad, proxies
from bench.paced_site import Arrival

pytestmark = pytest.mark.full


def seen(*times: float, host: str = "127.1.0.1", source: str = "127.0.0.1", path: str = "/1.html") -> list[Arrival]:
    return [Arrival(time, host, source, path) for time in times]


def test_the_share_of_a_host_counts_from_its_first_page_to_its_last() -> None:
    requests = [*seen(0.0, path="/robots.txt"), *seen(5.0, 6.0, 8.0), *seen(0.0, 4.0, host="127.1.0.2")]
    assert broad.judge(sorted(requests)).share == pytest.approx(3 / 7)


def test_a_gap_after_robots_txt_counts_too() -> None:
    verdict = broad.judge([*seen(0.0, path="/robots.txt"), *seen(0.5, 1.5, 2.5)])
    assert (verdict.gaps, verdict.close, verdict.shortest) == (3, 1, pytest.approx(0.5))


def test_requests_of_two_hosts_have_no_gap_between_them() -> None:
    verdict = broad.judge(sorted([*seen(0.0, 1.0), *seen(0.1, 1.1, host="127.1.0.2")]))
    assert (verdict.gaps, verdict.close) == (2, 0)


def test_what_proxies_allow_is_counted_without_the_beginning_and_the_end() -> None:
    requests = [
        *seen(0.0, 2.0, 3.0, 4.0, 5.0, 6.0, source="127.2.0.1"),
        *seen(2.5, 4.5, 6.0, source="127.2.0.2"),
    ]
    verdict = proxies.judge(sorted(requests), proxies=2)
    assert verdict.share == pytest.approx(5 / 6)
    assert verdict.pages_per_minute == pytest.approx(100.0)
    assert verdict.shortest == pytest.approx(1.0)
