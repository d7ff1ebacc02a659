from __future__ import annotations

import re
from pathlib import Path

import pytest

from shoal.errors import SettingError
from shoal.exits.configuration import PoolSpec, exits_by_name, load_pools
from shoal.fetch.exits import ExitConfig, secrets_of
from shoal.settings.layers import file_layer
from shoal.text.secrets import visible_origin

SECRET = "s3cret"
FULL = """
rate = "2/s"

[proxies.datacenter]
urls = ["http://user:s3cret@10.0.0.1:3128", "socks5://10.0.0.2:1080"]
file = "datacenter.txt"
env = "DATACENTER_PROXIES"
rate = "30/m"
per_exit = 3
host_rate = "10/s"
per_host = 100
quarantine = "2m"
max_quarantine = "1d"
sticky = true
rotate = "10m"
region = "de"
cost = 0.0004
cost_per_gb = 3

[proxies.service]
url = "https://key:s3cret@api.example?key=s3cret&url={url}"
error_statuses = [402]
forward_secrets = true

[accounts.shop]
logins = [
  {name = "anna", password_env = "ANNA_PASSWORD", user_agent = "Anna/1.0", proxy = "10.0.0.9:80:u:s3cret", pin = "7"},
  {name = "bert@shop.example", password = "s3cret"},
]
"""


KEY = "[accounts.a]\nhosts = {hosts}\nlogins = [{{name = 'x', headers = {headers}}}]"


def pools_of(folder: Path, text: str, **environ: str) -> dict[str, PoolSpec]:
    (folder / "shoal.toml").write_text(text, encoding="utf-8")
    return load_pools(folder / "shoal.toml", environ=environ)


def problem_of(folder: Path, text: str, **environ: str) -> str:
    with pytest.raises(SettingError) as caught:
        pools_of(folder, text, **environ)
    message = str(caught.value)
    assert "\n" not in message
    assert SECRET not in message
    return message


@pytest.fixture
def full(tmp_path: Path) -> dict[str, PoolSpec]:
    (tmp_path / "datacenter.txt").write_text(
        "# ours\n\n10.0.0.3:3128:anna:s3c:ret@/\n  10.0.0.4:3128\nhttp://10.0.0.1:3128\n", encoding="utf-8"
    )
    environ = {"DATACENTER_PROXIES": "https://[::1]:443, http://user:s3cret@10.0.0.1:3128\n10.0.0.5:80"}
    return pools_of(tmp_path, FULL, ANNA_PASSWORD=f"{SECRET}-2", **environ)


def test_reads_the_limits_of_a_pool_as_numbers(full: dict[str, PoolSpec]) -> None:
    pool = full["datacenter"]
    assert (pool.interval, pool.cap, pool.host_interval, pool.host_cap) == (2.0, 3, 0.1, 100)
    assert (pool.quarantine, pool.max_quarantine, pool.rotate) == (120.0, 86_400.0, 600.0)
    assert (pool.sticky, pool.region, pool.cost, pool.cost_per_gb) == (True, "de", 0.0004, 3.0)
    assert not pool.exclusive


def test_gathers_proxies_from_everywhere_each_once_with_readable_names(full: dict[str, PoolSpec]) -> None:
    assert {config.name.partition("/")[2]: config.url for config in full["datacenter"].exits} == {
        "10.0.0.1:3128": "http://user:s3cret@10.0.0.1:3128",
        "10.0.0.2:1080": "socks5://10.0.0.2:1080",
        "10.0.0.3:3128": "http://anna:s3c%3Aret%40%2F@10.0.0.3:3128",
        "10.0.0.4:3128": "http://10.0.0.4:3128",
        "10.0.0.1:3128-2": "http://10.0.0.1:3128",
        "[::1]:443": "https://[::1]:443",
        "10.0.0.5:80": "http://10.0.0.5:80",
    }
    assert all(config.kind == "proxy" for config in full["datacenter"].exits)


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("http://us%41er:p%40%3A%2F%25@h:1", "http://usAer:p%40%3A%2F%25@h:1"),
        ("http://anna:pä+ß@H.example:1/", "http://anna:p%C3%A4%2B%C3%9F@h.example:1"),
        ("socks5h://anna@h:1080", "socks5h://anna:@h:1080"),
    ],
)
def test_credentials_are_written_as_a_url_wants_them(tmp_path: Path, entry: str, url: str) -> None:
    (config,) = pools_of(tmp_path, f"[proxies.a]\nurl = '{entry}'")["a"].exits
    assert config.url == url


def test_a_url_with_a_place_for_the_pages_is_a_gateway(full: dict[str, PoolSpec]) -> None:
    (config,) = full["service"].exits
    assert (config.name, config.kind) == ("service/api.example", "gateway")
    assert config.url == "https://key:s3cret@api.example/?key=s3cret&url={url}"
    assert config.error_statuses == (402,)
    assert config.forwards_secrets


def test_accounts_are_exits_for_one_at_a_time(full: dict[str, PoolSpec]) -> None:
    pool = full["shop"]
    assert (pool.cap, pool.exclusive) == (1, True)
    anna, bert = pool.exits
    assert (anna.name, anna.kind, anna.user_agent) == ("shop/anna", "account", "Anna/1.0")
    assert anna.url == "http://u:s3cret@10.0.0.9:80"
    assert anna.fields == {"name": "anna", "password": "s3cret-2", "pin": "7"}
    assert (bert.name, bert.url, bert.fields["password"]) == ("shop/bert@shop.example", "", SECRET)


def test_nothing_that_is_shown_has_a_secret(full: dict[str, PoolSpec]) -> None:
    shown = [
        repr(full),
        str(full),
        *exits_by_name(full),
        *(str(config.__rich_repr__()) for config in exits_by_name(full).values()),
    ]
    assert len(exits_by_name(full)) == 10
    assert not [text for text in shown if SECRET in text or "s3c" in text]
    assert visible_origin("http://user:s3cret@10.0.0.1:3128") == "http://user:***@10.0.0.1:3128"
    assert visible_origin("https://api.example/?key=s3cret&url={url}") == "https://api.example"
    assert visible_origin("http://user:s3/cr@et@host:1/") == "http://user:***@host:1"
    assert visible_origin("https://api.example/?key=s3@cret&url={url}") == "https://api.example"


def test_pools_are_no_settings(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text(FULL, encoding="utf-8")
    assert file_layer(tmp_path / "shoal.toml")[1] == {"rate": "2/s"}
    (tmp_path / "shoal.toml").write_text('proxies = "list.txt"', encoding="utf-8")
    assert file_layer(tmp_path / "shoal.toml")[1] == {"proxies": "list.txt"}
    assert load_pools(tmp_path / "shoal.toml") == {}


def test_an_absent_file_has_no_pools(tmp_path: Path) -> None:
    assert load_pools(tmp_path / "shoal.toml") == {}


def test_a_plain_list_is_a_pool_with_default_limits(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("# bought\nhttp://10.0.0.1:3128\n10.0.0.2:3128\n", encoding="utf-8")
    (pool,) = load_pools(tmp_path / "shoal.toml", proxies=str(tmp_path / "mine.txt")).values()
    assert [config.name for config in pool.exits] == ["proxies/10.0.0.1:3128", "proxies/10.0.0.2:3128"]
    assert (pool.name, pool.cap, pool.quarantine, pool.max_quarantine) == ("proxies", 4, 60, 3600)
    assert (pool.has_own_rate, pool.interval, pool.host_interval) == (False, 0.0, 0.0)
    assert (pool.host_interval, pool.host_cap, pool.rotate, pool.sticky) == (0, 1000, 0, False)


@pytest.mark.parametrize("header", ["[one]", "[proxies.one]", "[proxies]"])
def test_a_file_of_pools_wins_over_shoal_toml(tmp_path: Path, header: str) -> None:
    (tmp_path / "shoal.toml").write_text("[proxies.one]\nurl = 'http://10.0.0.1:1'\n[proxies.two]\nurl = 'a:2'\n")
    (tmp_path / "more").write_text(f"{header}\nurls = ['http://10.0.0.2:3']\n", encoding="utf-8")
    pools = load_pools(tmp_path / "shoal.toml", proxies=str(tmp_path / "more"))
    name = "proxies" if header == "[proxies]" else "one"
    assert [config.url for config in pools[name].exits] == ["http://10.0.0.2:3"]
    assert "two" in pools


def test_logins_come_from_files_and_the_environment_too(tmp_path: Path) -> None:
    (tmp_path / "logins.toml").write_text("[[logins]]\nname = 'a'\npassword = 'x'\n", encoding="utf-8")
    (tmp_path / "logins.txt").write_text("b:x:y\n# none\n", encoding="utf-8")
    text = "[accounts.one]\nfile = 'logins.toml'\nenv = 'LOGINS'\n[accounts.two]\nfile = 'logins.txt'"
    pools = pools_of(tmp_path, text, LOGINS="c:z\n d:w")
    assert [config.fields for config in pools["one"].exits] == [
        {"name": "a", "password": "x"},
        {"name": "c", "password": "z"},
        {"name": "d", "password": "w"},
    ]
    assert [config.fields for config in pools["two"].exits] == [{"name": "b", "password": "x:y"}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[proxies.a]\nurl = 'http://h:1'\nquarantin = '1m'", "did you mean 'quarantine'?"),
        ("[proxies.a]\nurl = 'http://h:1'\nlogins = []", "unknown key 'logins'"),
        ("[accounts.a]\nurls = ['http://h:1']", "unknown key 'urls'"),
        ("[proxies.a]\nurl = 'http://h:1'\nrate = 'often'", "rate 'often' is not understood"),
        ("[proxies.a]\nurl = 'http://h:1'\nrotate = '10'", "duration '10' is not understood"),
        ("[proxies.a]\nurl = 'http://h:1'\nper_exit = 0", "at least 1"),
        ("[proxies.a]\nurl = 'http://h:1'\nper_exit = 'four'", "per_exit: expected `int`, got `str`"),
        ("[proxies.a]\nurl = 'http://h:1'\ncost = -1", "cost: -1 is less than 0"),
        ("[proxies.a]\nurls = []", "it has no proxies"),
        ("[accounts.a]", "it has no logins"),
        ("[proxies.a]\nurls = ['http://h:1', 'ftp://u:s3cret@h:1']", "entry 2 of urls is not"),
        ("[proxies.a]\nurls = ['http://u:s3cret@h']", "a host and a port"),
        ("[proxies.a]\nurls = ['http://u:s3cret/x@h:1']", "%2F"),
        ("[proxies.a]\nurls = ['http://u:s3cret@h:70000']", "its port is no number up to 65535"),
        ("[proxies.a]\nurls = ['http://u:s3cret@h h:1']", "a host and a port"),
        ("[proxies.a]\nurl = 'http://h:x/?k=s3cret&u={url}'", "{url} behind its host"),
        ("[proxies.a]\nurl = 'http://[::1/?k=s3cret&u={url}'", "{url} behind its host"),
        ("[proxies.a]\nurl = 'http://h:1'\ncost = nan", "cost: nan is no amount"),
        ("[proxies.a]\nurl = 'http://h:1'\ncost_per_gb = inf", "cost_per_gb: inf is no amount"),
        ("[proxies.a]\nurl = 'http://h:1'\nquarantine = '2h'", "longer than max_quarantine"),
        ("[proxies.a]\nurl = 'http://h:1'\nrotate = '10m'", "write sticky = true"),
        ("[proxies]\nrate = '1/s'\n[proxies.a]\nurl = 'http://h:1'", "rate is directly under [proxies], beside pools"),
        ("[proxies.a]\nurls = ['http://u:s3cret@h:1/path']", "nothing after them"),
        ("[proxies.a]\nurl = 'https://{url}/?k=s3cret'", "{url} behind its host"),
        ("[proxies.a]\nfile = 'missing.txt'", "cannot read missing.txt: No such file"),
        ("[proxies.a]\nenv = 'MISSING'", "the environment has no MISSING"),
        ("[proxies.direct]\nurl = 'http://h:1'", "'direct' is not a valid pool name"),
        ("[proxies.'a b']\nurl = 'http://h:1'", "'a b' is not a valid pool name"),
        ("[proxies.a]\nurl = 'http://h:1'\n[accounts.a]\nlogins = [{name = 'x'}]", "or is used twice"),
        ("[proxies]\nurl = 5", "url: expected `str`"),
        ("proxies = 5", "proxies is not a table"),
        ("[accounts.a]\nlogins = [{password = 's3cret'}]", "login 1 of its 1 has no name"),
        ("[accounts.a]\nlogins = [{name = 'x'}, {name = 'x'}]", "login 2 of its 2 has no name of its own"),
        ("[accounts.a]\nlogins = [{name = 'x', proxy = 'ftp://u:s3cret@h:1'}]", "the proxy of x is not one"),
        ("[accounts.a]\nlogins = [{name = 'x', password_env = 'MISSING'}]", "the environment has no MISSING"),
        ("[accounts.a]\nenv = 'LOGINS'", "name:password"),
        ("[proxies", "is not valid TOML"),
        (KEY.format(hosts="[]", headers="{X-Key = 's3cret'}"), "would go to every site: write hosts = ["),
        (KEY.format(hosts="['*.h.example']", headers="{X-Key = 's3cret'}"), "entry 1 of hosts is no host: write api."),
        (KEY.format(hosts="['h', 'u:s3cret@h']", headers="{X-Key = 's3cret'}"), "entry 2 of hosts is no host"),
        (KEY.format(hosts="['h/v1']", headers="{X-Key = 's3cret'}"), "entry 1 of hosts is no host"),
        (
            KEY.format(hosts="['h']", headers="'X-Key: s3cret'"),
            "headers of login 1 of its 1 is no table: write headers",
        ),
        (KEY.format(hosts="['h']", headers="{X-Key_env = 'MISSING'}"), "the environment has no MISSING"),
        (KEY.format(hosts="['h']", headers="{'Bearer s3cret' = 'Authorization'}"), "header 1 of x is no header: write"),
        (
            KEY.format(hosts="['h']", headers='{X-Key = "s3cret\\nX-Other: 1"}'),
            "header 1 of x is no header: write a name",
        ),
        (
            "[accounts.a]\nhosts = ['h']\nlogins = [{name = 'x', X-Key = 's3cret'}]",
            "no login has headers: write headers",
        ),
        (
            KEY.format(hosts="['h']", headers="{X-Key = 's3cret'}}, {name = 'y', password = 's3cret'"),
            "some of its accounts have a password and some have only headers: make two pools of them",
        ),
    ],
)
def test_says_in_one_line_what_is_wrong(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in problem_of(tmp_path, text, LOGINS="s3cret")


def test_says_what_is_wrong_with_a_proxies_file(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    for text, expected in (("", "names no proxies"), ("\n# x\nhttp://u:s3cret@h:x\n", "line 3 of list.txt")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(SettingError, match=expected) as caught:
            load_pools(tmp_path / "shoal.toml", proxies=str(path))
        assert SECRET not in str(caught.value)
    with pytest.raises(SettingError, match="cannot read the proxies"):
        load_pools(tmp_path / "shoal.toml", proxies=str(tmp_path / "none"))


@pytest.mark.parametrize("given", ["http://u:s3cret@h:1", "10.0.0.1:80:u:s3cret", "u:s3cret@h:1"])
def test_a_proxy_in_place_of_a_file_is_not_repeated(tmp_path: Path, given: str) -> None:
    with pytest.raises(SettingError, match="--proxies needs a file") as caught:
        load_pools(tmp_path / "shoal.toml", proxies=given)
    assert SECRET not in str(caught.value)


def test_files_are_read_as_windows_editors_save_them(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(b"\xef\xbb\xbfhttp://10.0.0.1:80\r\n# spare\r\n\r\n10.0.0.2:80 # in Oslo\r\n")
    (pool,) = load_pools(tmp_path / "shoal.toml", proxies=str(path)).values()
    assert [config.url for config in pool.exits] == ["http://10.0.0.1:80", "http://10.0.0.2:80"]
    config = tmp_path / "shoal.toml"
    config.write_bytes(b"\xef\xbb\xbfmax_depth = 3\r\n[proxies.a]\r\nfile = 'list.txt'\r\n")
    assert len(load_pools(config)["a"].exits) == 2
    assert file_layer(config)[1] == {"max_depth": 3}


def test_the_secrets_of_an_exit_are_known(full: dict[str, PoolSpec]) -> None:
    exits = exits_by_name(full)
    assert secrets_of(exits["datacenter/10.0.0.1:3128"]) == [SECRET]
    assert secrets_of(exits["datacenter/10.0.0.4:3128"]) == []
    assert set(secrets_of(exits["service/api.example"])) == {SECRET}
    assert set(secrets_of(exits["shop/anna"])) == {f"{SECRET}-2", "7", SECRET}
    assert secrets_of(ExitConfig(name="a/b", kind="proxy", url="http://s3cret:@h:1")) == [SECRET]


@pytest.mark.parametrize(
    ("template", "secrets"),
    [
        ("https://h/v1/scrape?api_key=s3cret&render=desktop&country=germany&url={url}", [SECRET]),
        ("https://h/scraping/0123456789abcdef/{url}", ["0123456789abcdef"]),
        ("https://s3cret@h/?device=desktop&url={url}", [SECRET]),
        ("https://h/?id=a%2Fb-0123456789&url={url}", ["a/b-0123456789"]),
    ],
)
def test_a_gateways_key_is_told_from_its_options(template: str, secrets: list[str]) -> None:
    assert secrets_of(ExitConfig(name="a/b", kind="gateway", url=template)) == secrets


def test_the_pools_of_the_how_to_pages_can_be_read(tmp_path: Path) -> None:
    pages = Path(__file__).parents[3] / "docs" / "how-to"
    (tmp_path / "residential.txt").write_text("10.0.0.1:80", encoding="utf-8")
    environ = {"RESIDENTIAL": "10.0.0.2:80", "ANNA_PASSWORD": "a", "BERT_PASSWORD": "b", "FIRST_KEY": "c"}
    found = {}
    for name in ("proxies.md", "accounts.md"):
        for text in re.findall(r"```toml\n(.*?)```", (pages / name).read_text(encoding="utf-8"), re.DOTALL):
            found |= pools_of(tmp_path, text, **environ)
    assert {name: len(pool.exits) for name, pool in found.items()} == {
        "datacenter": 2,
        "residential": 2,
        "service": 1,
        "shop": 2,
        "api": 2,
    }


def test_the_hosts_of_a_key_are_written_as_the_urls_of_tasks_are(tmp_path: Path) -> None:
    hosts = "['API.Example.com:443', 'bücher.example', 'http://localhost:8000/', 'http://[::1]:80']"
    (config,) = pools_of(tmp_path, KEY.format(hosts=hosts, headers="{X-Key = 's3cret'}"))["a"].exits
    assert config.hosts == (
        "https://api.example.com/",
        "https://xn--bcher-kva.example/",
        "http://localhost:8000/",
        "http://[::1]/",
    )


def test_exits_that_differ_in_their_secrets_alone_are_not_equal() -> None:
    first, same, other = (ExitConfig(name="a/b", kind="proxy", url=f"http://u:{word}@h:1") for word in ("1", "1", "2"))
    assert first == same
    assert first != other
