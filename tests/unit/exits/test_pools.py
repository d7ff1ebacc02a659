"""Which pools a crawl gets, and which of them its requests take when they name none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal import Spider
from shoal.errors import UsageError
from shoal.exits.configuration import PoolSpec, load_pools
from shoal.exits.pools import default_pool, pool_of, usable_pools
from shoal.policy.politeness import lent_interval
from shoal.settings.table import Settings

TABLES = """
[proxies.ring]
urls = ["http://anna:pass-word@10.0.0.1:3128"]
rate = "2/s"
host_rate = "10/s"
quarantine = "2m"

[accounts.shop]
logins = [{name = "anna", password = "pass-word"}]
"""


class Plain(Spider):
    pass


class Member(Spider):
    async def login(self, session: Any) -> Any:
        return True


@pytest.fixture
def pools(tmp_path: Path) -> dict[str, PoolSpec]:
    (tmp_path / "shoal.toml").write_text(TABLES)
    return load_pools(tmp_path / "shoal.toml")


def test_accounts_are_for_spiders_that_can_log_in(pools: dict[str, PoolSpec]) -> None:
    assert usable_pools(pools, Plain()).keys() == {"ring"}
    assert usable_pools(pools, Member()).keys() == {"ring", "shop"}


def test_requests_go_out_directly_unless_a_pool_is_named(pools: dict[str, PoolSpec]) -> None:
    assert default_pool(pools, spider=Plain(), settings=Settings()) == ""
    assert default_pool(pools, spider=Plain(), settings=Settings(pool="direct")) == "direct"
    assert default_pool(pools, spider=Plain(), settings=Settings(pool="ring")) == "ring"
    assert default_pool(pools, spider=Member(), settings=Settings(pool="shop")) == "shop"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1:80\n10.0.0.2:80", "proxies"),
        (TABLES, "ring"),
        ("[a]\nurl = '10.0.0.1:80'\n[b]\nurl = '10.0.0.2:80'", ""),
    ],
)
def test_a_file_with_one_pool_of_proxies_is_meant_to_be_used(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "proxies"
    path.write_text(text)
    settings = Settings(proxies=str(path))
    given = load_pools(tmp_path / "shoal.toml", proxies=settings.proxies)
    assert default_pool(given, spider=Plain(), settings=settings) == expected
    direct = msgspec.structs.replace(settings, pool="direct")
    assert default_pool(given, spider=Plain(), settings=direct) == "direct"


def test_a_pool_that_cannot_be_used_is_refused_with_the_reason(pools: dict[str, PoolSpec]) -> None:
    with pytest.raises(UsageError, match="there is no pool 'rong', only direct, ring"):
        default_pool(pools, spider=Plain(), settings=Settings(pool="rong"))
    with pytest.raises(UsageError, match="Plain has no login"):
        default_pool(pools, spider=Plain(), settings=Settings(pool="shop"))


def test_the_frontier_gets_limits_and_names_and_no_secret(pools: dict[str, PoolSpec]) -> None:
    ring = pool_of(pools["ring"], settings=Settings(exit_patience="30m"))
    assert (ring.exits, ring.quarantine, ring.patience) == (("ring/10.0.0.1:3128",), 120.0, 1800.0)
    assert (ring.interval, ring.host_interval) == (lent_interval(0.5), lent_interval(0.1))
    shop = pool_of(pools["shop"], settings=Settings())
    assert (shop.exits, shop.exclusive, shop.cap) == (("shop/anna",), True, 1)
    assert "pass-word" not in repr((ring, shop))


@pytest.mark.parametrize(
    ("limits", "per_exit", "per_host"),
    [
        ("", 0.0, 0.25),
        ("rate = '2/s'", 0.5, 0.0),
        ("host_rate = '10/s'", 0.0, 0.1),
        ("rate = 'unlimited'", 0.0, 0.0),
        ("rate = '2/s'\nhost_rate = '10/s'", 0.5, 0.1),
    ],
)
def test_a_pool_without_a_rate_has_the_spiders_towards_each_host(
    tmp_path: Path, limits: str, per_exit: float, per_host: float
) -> None:
    (tmp_path / "shoal.toml").write_text(f"[proxies.ring]\nurls = ['10.0.0.1:80', '10.0.0.2:80']\n{limits}\n")
    pool = pool_of(load_pools(tmp_path / "shoal.toml")["ring"], settings=Settings(rate="4/s"))
    assert (pool.interval, pool.host_interval) == (lent_interval(per_exit), lent_interval(per_host))
    assert pool.has_own_rate is bool(limits)
