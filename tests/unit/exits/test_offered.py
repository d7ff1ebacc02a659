from __future__ import annotations

import socket
from pathlib import Path

import pytest

from shoal.errors import SettingError, UsageError
from shoal.exits.configuration import load_pools
from shoal.exits.offered import NO_EXITS, Offered, load_own_exits, own_exits
from shoal.exits.pools import default_pool
from shoal.model import Pool
from shoal.settings.table import Settings
from shoal.spider.spider import Spider

SECRET = "s3cret"
FULL = """
machine = "fra-1"

[exits.own]
urls = ["bind:127.0.0.2", "bind:127.0.0.3"]
region = "eu"
per_exit = 2

[exits.res]
urls = ["http://anna:s3cret@10.0.0.1:3128"]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "exits.toml"
    path.write_text(text, encoding="utf-8")
    return path


def problem_of(folder: Path, text: str) -> str:
    with pytest.raises((SettingError, UsageError)) as caught:
        load_own_exits(written(folder, text), {})
    message = str(caught.value)
    assert "\n" not in message
    assert SECRET not in message
    return message


def offered(path: Path, *pools: Pool) -> tuple[Offered, list[str]]:
    said: list[str] = []
    return load_own_exits(path, {}).for_crawl(pools, settings=Settings(), say=said.append), said


def test_exits_of_a_machine_are_named_after_it(tmp_path: Path) -> None:
    found, said = offered(written(tmp_path, FULL), Pool(name="res", exits=("res/10.9.9.9:80",)))
    addresses = ("region:eu/127.0.0.2@fra-1", "region:eu/127.0.0.3@fra-1")
    assert {pool.name: pool.exits for pool in found.offers} == {
        "region:eu": addresses,
        "res": ("res/10.0.0.1:3128@fra-1",),
    }
    assert {pool.name: pool.exits for pool in found.pools} == {
        "region:eu": addresses,
        "res": ("res/10.9.9.9:80", "res/10.0.0.1:3128@fra-1"),
    }
    assert found.exits["region:eu/127.0.0.2@fra-1"].address == "127.0.0.2"
    assert found.kinds(["http", "browser"]) == ("http", "browser", "http@eu", "browser@eu")
    assert said == []


def test_a_region_is_the_pool_of_the_crawl_that_has_its_tag(tmp_path: Path) -> None:
    european = Pool(name="europe", exits=("europe/10.9.9.9:80",), region="eu")
    found, _ = offered(written(tmp_path, FULL), european)
    assert [pool.name for pool in found.offers] == ["europe"]
    assert found.kinds(["http"]) == ("http",)


def test_exits_without_a_region_and_without_their_pool_are_said_to_be_of_no_use(tmp_path: Path) -> None:
    found, (line,) = offered(written(tmp_path, FULL))
    assert [pool.name for pool in found.offers] == ["region:eu"]
    assert line.startswith("[exits.res] is of no use to this crawl: it has no pool 'res'; write region = …")


def test_exits_of_two_tables_of_one_region_are_offered_together(tmp_path: Path) -> None:
    path = written(
        tmp_path, '[exits.a]\nurls = ["10.0.0.1:80"]\nregion = "eu"\n[exits.b]\nurls = ["10.0.0.2:80"]\nregion = "eu"'
    )
    found, _ = offered(path)
    machine = socket.gethostname()
    assert found.offers[0].exits == (f"region:eu/10.0.0.1:80@{machine}", f"region:eu/10.0.0.2:80@{machine}")


def test_without_a_file_nothing_is_offered() -> None:
    assert own_exits({}) is NO_EXITS
    assert NO_EXITS.for_crawl((), settings=Settings(), say=print) == Offered({}, (), ())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[exits.own]\nurl = "bind:127.0.0.2"\nregoin = "eu"', "unknown key 'regoin'; did you mean 'region'?"),
        ('[exit.own]\nurl = "bind:127.0.0.2"', "'exit' has no meaning here: write machine = … and [exits.NAME]"),
        (
            '[proxies.own]\nurl = "10.0.0.1:80"',
            "[proxies.NAME] belongs in shoal.toml; exits of this machine are [exits",
        ),
        ('machine = "a b"\n[exits.own]\nurl = "10.0.0.1:80"', "the name of this machine, such as fra-1, and not 'a b'"),
        ("machine = 7", "the name of this machine, such as fra-1, and not 7"),
        ('[exits.own]\nurl = "bind:eth0"', "(it is no IPv4 or IPv6 address): write bind:192.0.2.7, with an address"),
        ('[exits.own]\nurl = "bind:0.0.0.0"', "(requests cannot leave from such an address): write bind:192.0.2.7"),
        ('[exits.own]\nurl = "ftp://u:s3cret@h:1"', "its scheme is none of http, https, socks5, socks5h"),
        ('[exits.own]\nurl = "10.0.0.1:80"\nregion = "e u"', "the region 'e u' is no name of a region: write a short"),
        ('[exits.own]\nurl = "10.0.0.1:80"\nhost_rate = "1/s"', "unknown key 'host_rate'; did you mean 'rate'?"),
        ('[exits.own]\nlogins = [{name = "a", password = "s3cret"}]', "unknown key 'logins'"),
        ("[exits.own]\nurls = []", "it has no proxies"),
        ('machine = "fra-1"', "names no exits: write [exits.NAME] with urls = […]"),
        ("10.0.0.1:80:u:s3cret", "is not valid TOML"),
        (
            '[exits.a]\nurl = "a:80"\nregion = "eu"\n[exits.b]\nurl = "b:80"\nrate = "1/s"\nregion = "eu"',
            "[exits.b] in EXITS: it has other limits than [exits.a], and both are of eu",
        ),
    ],
)
def test_a_slip_is_one_line_that_says_what_to_write(tmp_path: Path, text: str, problem: str) -> None:
    assert problem.replace("EXITS", str(tmp_path / "exits.toml")) in problem_of(tmp_path, text)


def test_an_address_of_another_machine_is_refused_with_those_of_this_one(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, '[exits.own]\nurls = ["bind:127.0.0.2", "bind:203.0.113.77"]')
    assert "[exits.own] in " in problem
    assert "this machine does not have the address 203.0.113.77: it has " in problem
    assert "127.0.0.1" in problem


def test_an_exit_in_place_of_the_file_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError, match=r"^SHOAL_EXITS needs a file: write machine = … and \[exits.NAME\]"
    ) as caught:
        load_own_exits(Path("http://anna:s3cret@10.0.0.1:3128"), {})
    assert SECRET not in str(caught.value)
    with pytest.raises(SettingError, match=r"^--exits: there is no file .*nowhere.toml: write machine"):
        load_own_exits(tmp_path / "nowhere.toml", {}, given_by="--exits")


def test_a_host_name_that_many_machines_have_names_no_exits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost.localdomain")
    text = '[exits.own]\nurl = "10.0.0.1:80"'
    assert "is called localhost.localdomain, as many are: write machine = … at the top" in problem_of(tmp_path, text)
    assert load_own_exits(written(tmp_path, f'machine = "fra-1"\n{text}'), {}).machine == "fra-1"


def test_an_address_belongs_in_the_file_of_its_machine(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text('[proxies.own]\nurls = ["bind:127.0.0.2"]')
    with pytest.raises(SettingError, match=r"127.0.0.2 is an address of one machine: write it into a file for --exits"):
        load_pools(tmp_path / "shoal.toml", environ={})


class Books(Spider):
    start = "https://books.example"


def test_the_setting_region_is_the_pool_of_requests_that_name_none() -> None:
    chosen = default_pool({}, spider=Books(), settings=Settings(region="eu"))
    assert chosen == "region:eu"
    with pytest.raises(UsageError, match="pool is 'direct' and region is 'eu': leave out one of these settings"):
        default_pool({}, spider=Books(), settings=Settings(region="eu", pool="direct"))
