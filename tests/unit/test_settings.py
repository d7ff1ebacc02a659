"""Settings: where they come from, which one counts, and how a wrong one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal import Spider
from shoal.errors import SettingError
from shoal.run.intakes import settings_of
from shoal.settings.layers import OF_SCRAPY, environment_layer, file_layer, resolve
from shoal.settings.table import FIELDS, Settings
from shoal.settings.values import parse_duration, parse_rate


def test_the_stronger_layer_counts_and_is_named() -> None:
    resolved = resolve([("file", {"rate": "2/s", "max_depth": 3}), ("environment", {"rate": "3/s"}), ("flag", {})])
    assert (resolved.values.rate, resolved.values.max_depth) == ("3/s", 3)
    assert (resolved.origins["rate"], resolved.origins["max_depth"]) == ("environment", "file")
    assert resolved.origins["per_host"] == "default"


def test_a_spiders_settings_lie_between_the_environment_and_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mine(Spider):
        rate = "5/s"
        max_depth = 2
        settings = {"max_attempts": 9}  # noqa: RUF012 -- as people write it

    (tmp_path / "shoal.toml").write_text('rate = "1/s"\nper_host = 3\nallow = [".a.test"]\n')
    monkeypatch.setenv("SHOAL_RATE", "2/s")
    monkeypatch.setenv("SHOAL_PER_HOST", "4")
    resolved = settings_of(Mine, {"max_depth": 7}, folder=tmp_path)
    values = resolved.values
    assert (values.rate, values.per_host, values.max_depth, values.max_attempts) == ("5/s", 4, 7, 9)
    assert values.allow == (".a.test",)
    assert resolved.origins["rate"] == "spider Mine"
    assert resolved.origins["max_depth"] == "command line"


def test_the_environment_speaks_in_text() -> None:
    _, layer = environment_layer(
        {"SHOAL_MAX_DEPTH": "3", "SHOAL_ALLOW": "a.test, .b.test", "SHOAL_OBEY_ROBOTS": "false", "PATH": "x"}
    )
    values = resolve([("environment", layer)]).values
    assert (values.max_depth, values.allow, values.obey_robots) == (3, ("a.test", ".b.test"), False)
    assert resolve([("command line", {"handle_statuses": "404, 410"})]).values.handle_statuses == (404, 410)


def test_where_a_crawl_lives_is_no_setting_of_it() -> None:
    assert environment_layer({"SHOAL_FRONTIER": "redis://h/0", "SHOAL_STORE": "x.db"}) == ("environment", {})
    assert environment_layer({"SHOAL_ARCHIVE": "pages", "SHOAL_SINK": "a.jsonl"}) == ("environment", {})
    assert environment_layer({"SHOAL_WEBHOOK_SECRET": "word"}) == ("environment", {})


@pytest.mark.parametrize(
    ("layer", "line"),
    [
        ({"max_dept": 3}, r"unknown setting 'max_dept' \(here\); did you mean 'max_depth'\?"),
        ({"store": "items.db"}, r"'store' \(here\) is a place, not a setting: set SHOAL_STORE, or give --store"),
        ({"known_ttl": 14}, r"^setting 'known_ttl' \(here\): expected a time such as \"14d\", got 14$"),
        ({"rate": "often"}, r"^setting 'rate' \(here\): rate 'often' is not understood: write it as 4/s"),
        ({"zzzz": 3}, r"`shoal settings` lists them all"),
        ({"max_depth": -1}, r"setting 'max_depth' \(here\): expected `int` >= 0, got -1"),
        ({"max_depth": "many"}, r"setting 'max_depth'"),
        ({"max_depth": 2.5}, r"setting 'max_depth'"),
        ({"concurrency": 0}, r">= 1"),
        ({"max_depth": "many"}, r"\(here\): expected `int`, got 'many'$"),
        ({"max_failures": 0.5}, r"max_failures '0.5' is not understood: write a share such as 50%"),
        ({"pace": "quick"}, r"setting 'pace' \(here\): expected 'fixed' or 'adaptive' or 'search', got 'quick'"),
        (
            {"pace": "search"},
            r'pace = "search" needs max_rate, the upper limit for one host, such as max_rate = "50/s"',
        ),
        ({"pace": "search", "max_rate": "1/s"}, r"max_rate '1/s' is not above rate '1/s', where the search begins"),
        (
            {"pace": "search", "max_rate": "unlimited"},
            r"max_rate 'unlimited' is no limit for a search: write the upper limit",
        ),
        ({"pace": "search", "max_rate": "unlimited"}, r"max_rate 'unlimited' is no limit"),
        ({"pace": "search", "max_rate": "quick"}, r"^max_rate 'quick' is not understood: write it as 4/s"),
        ({"pace": "search", "max_rate": "9/s", "rate": "unlimited"}, r'cannot begin at "unlimited": write it as 1/s'),
        (
            {"max_rate": "9/s"},
            r"max_rate '9/s' is only for pace = \"search\": write that, or set max_rate to an empty text",
        ),
        ({"cookies": {"a": "b"}}, r"setting 'cookies' \(here\): expected 'worker' or 'fleet' or 'off', got"),
        ({"same_page": ["slash"]}, r"expected 'trailing_slash' or 'index', got \['slash'\]"),
        ({"obey_robots": "perhaps"}, r"setting 'obey_robots'"),
        ({"handle_statuses": ["x"]}, r"setting 'handle_statuses'"),
        ({"weight": 0}, r"setting 'weight' \(here\): expected `float` >= 0.001, got 0"),
        ({"weight": "nan"}, r"setting 'weight' \(here\): expected `float` >= 0.001, got 'nan'"),
        ({"pace_scope": "site"}, r"setting 'pace_scope' \(here\): expected 'host' or 'crawl', got 'site'"),
        ({"machines": ["4 cores"]}, r"machines entry '4 cores' is not understood: write it as 4 cores 8 GB 0.18/h"),
        ({"rate": "fast"}, r"write it as 4/s, 30/m, 100/h or unlimited"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(layer: dict[str, Any], line: str) -> None:
    with pytest.raises(SettingError, match=line) as raised:
        resolve([("here", layer)])
    assert "\n" not in str(raised.value)


def test_a_file_that_is_absent_has_no_settings_and_a_broken_one_is_named(tmp_path: Path) -> None:
    assert file_layer(tmp_path / "shoal.toml")[1] == {}
    (tmp_path / "shoal.toml").write_text("rate = ")
    with pytest.raises(SettingError, match=r"shoal\.toml is not valid TOML"):
        file_layer(tmp_path / "shoal.toml")
    (tmp_path / "shoal.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match=r"shoal\.toml is not valid TOML"):
        file_layer(tmp_path / "shoal.toml")


@pytest.mark.parametrize(
    ("text", "interval"), [("4/s", 0.25), ("30/m", 2.0), ("100/h", 36.0), ("0.5/s", 2.0), ("unlimited", 0.0)]
)
def test_a_rate_is_an_interval(text: str, interval: float) -> None:
    assert parse_rate(text) == interval


@pytest.mark.parametrize("text", ["", "4", "4/", "/s", "0/s", "-1/s", "nan/s", "inf/s", "4/day", "1/s/s"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="is not understood"):
        parse_rate(text)


def test_every_setting_has_help_and_survives_the_wire() -> None:
    for name, field in FIELDS.items():
        schema = msgspec.json.schema(field.type)
        assert schema.get("description"), name
    assert msgspec.convert(msgspec.to_builtins(Settings()), Settings) == Settings()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 0.0), ("90s", 90.0), ("30m", 1800.0), ("1.5h", 5400.0), ("7d", 604_800.0), ("2w", 1_209_600.0)],
)
def test_reads_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("max_bytes", "5GB", 5_000_000_000),
        ("max_bytes", "5000", 5000),
        ("max_seconds", "2h", 7200.0),
        ("max_seconds", "90.5", 90.5),
        ("max_seconds", 90, 90.0),
        ("worker_max_seconds", "6h", "6h"),
        ("worker_max_seconds", "3600", "3600s"),
        ("worker_max_seconds", 3600, "3600s"),
    ],
)
def test_a_time_and_a_size_may_have_a_unit(name: str, given: Any, value: Any) -> None:
    assert getattr(resolve([("x", {name: given})]).values, name) == value


def test_a_dedup_ttl_must_be_a_duration() -> None:
    assert resolve([("command line", {"dedup_ttl": "3d"})]).values.dedup_ttl == "3d"
    with pytest.raises(SettingError, match="write it as 90s"):
        resolve([("command line", {"dedup_ttl": "weekly"})])


@pytest.mark.parametrize("text", ["1", "h", "-1h", "1 h", "1y", "nans"])
def test_refuses_what_is_no_duration(text: str) -> None:
    with pytest.raises(SettingError, match="write it as 90s"):
        parse_duration(text)


@pytest.mark.parametrize("name", ["freshness", "retention"])
def test_a_duration_that_is_none_names_its_setting(name: str) -> None:
    assert resolve([("here", {name: "90d"})]).values
    with pytest.raises(SettingError, match=rf"setting '{name}' \(here\): duration 'soon' is not understood"):
        resolve([("here", {name: "soon"})])


def test_freshness_and_filling_exclude_each_other() -> None:
    resolve([("file", {"merge": "fill", "freshness": ""}), ("flag", {"merge": "replace", "freshness": "1h"})])
    with pytest.raises(SettingError, match="use one of the two") as refusal:
        resolve([("file", {"merge": "fill"}), ("flag", {"freshness": "1h"})])
    assert "\n" not in str(refusal.value)


def test_networks_that_are_none_are_refused_with_an_example() -> None:
    with pytest.raises(SettingError, match=r"'10\.1\.0\.1/16' is not a network: write it as 10\.1\.0\.0/16"):
        resolve([("test", {"allow_addresses": ["127.0.0.1", "10.1.0.1/16"]})])
    assert resolve([("test", {"allow_addresses": "127.0.0.1,fd00::/8"})]).values.allow_addresses == (
        "127.0.0.1",
        "fd00::/8",
    )


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("raet", "4/s", "rate"),
        ("Rate", "4/s", "rate"),
        ("alow", ["a.test"], "allow"),
        ("alow_private", True, "allow_private"),
        ("alow_privat", True, "allow_private"),
        ("max_page", 10, "max_pages"),
        ("weigth", 2, "weight"),
        ("pace_scop", "crawl", "pace_scope"),
        ("maxdepth", 3, "max_depth"),
        ("concurency", 3, "concurrency"),
        ("USER_AGENT", "me", "user_agent"),
        ("item_keys", "sku", "item_key"),
        ("handle_status", (404,), "handle_statuses"),
        ("strip_parameter", ["x"], "strip_parameters"),
    ],
)
def test_a_class_attribute_that_is_almost_a_setting_is_refused(name: str, value: Any, meant: str) -> None:
    spider = type("Books", (Spider,), {name: value})
    line = f"unknown setting {name!r} \\(spider Books\\); did you mean {meant!r}\\? .* another name, such as _{name}$"
    for kind in (spider, type("More", (spider,), {})):
        with pytest.raises(SettingError, match=line.replace("Books", kind.__name__)):
            settings_of(kind, {})


@pytest.mark.parametrize(
    ("name", "value", "ours"),
    [
        ("allowed_domains", ["a.test"], "allow"),
        ("custom_settings", {"DOWNLOAD_DELAY": 3}, "settings"),
        ("DOWNLOAD_DELAY", 3, "rate"),
        ("handle_httpstatus_list", [404], "handle_statuses"),
    ],
)
def test_a_limit_as_scrapy_names_it_is_refused_with_ours(name: str, value: Any, ours: str) -> None:
    with pytest.raises(SettingError, match=f"{name!r} .* is a name from Scrapy .*: write {ours!r}"):
        settings_of(type("Books", (Spider,), {name: value}), {})


def test_what_scrapy_names_differently_is_a_setting_or_an_attribute_here() -> None:
    assert all(name in FIELDS or hasattr(Spider, name) for name in OF_SCRAPY.values())


def test_a_spiders_own_attributes_are_left_alone() -> None:
    class Books(Spider):
        rates = {"a": 1}  # noqa: RUF012 -- as people write it
        paces = (1, 2)
        pools = ["eu"]  # noqa: RUF012 -- as people write it
        user_agents = ("a", "b")
        date = "2026-05-01"
        page = 1
        denied = 3
        max_per_hour = 5
        max_speed = 3
        min_pages = 1
        max_price = 9.5
        _raet = "4/s"
        start_urls = ["https://a.test/"]  # noqa: RUF012 -- as people write it

        def raet(self) -> None: ...

    assert settings_of(Books, {}).values == Settings()
