from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec
import pytest

from shoal.cli.crawl import REFERENCE as SITE_PAGES
from shoal.cli.display.next_commands import command, commands, program, run_again, run_line
from shoal.cli.options import checked_place, setting_options
from shoal.crawl.opening import Places
from shoal.crawl.record import CrawlRecord
from shoal.errors import UsageError
from shoal.model import Crawl
from shoal.settings.layers import resolve
from shoal.settings.table import Settings

FILE = Places(frontier="shoal.db", store="shoal.db")
REDIS = Places(frontier="redis://h:6380/0", store="shoal.db")


def line_of(line: str, places: Places, environ: Mapping[str, str] | None = None) -> str:
    return command(line, places, by="shoal", environ=environ or {})


@pytest.mark.parametrize(
    ("line", "places", "environ", "shown"),
    [
        ("export a-1 -o a.csv", FILE, {}, "shoal export a-1 -o a.csv"),
        ("export a-1 -o a.csv", REDIS, {}, "shoal export a-1 -o a.csv --frontier redis://h:6380/0"),
        (
            "export a-1 -o a.csv",
            Places(frontier="shoal.db", store="my items.db"),
            {},
            "shoal export a-1 -o a.csv",  # the crawl remembers its store
        ),
        (
            "sql 'SELECT 1'",
            Places(frontier="shoal.db", store="my items.db"),
            {},
            "shoal sql 'SELECT 1' --store 'my items.db'",
        ),
        (
            "run books.py",
            Places(frontier="shoal.db", store="my items.db", other_store=True),
            {},
            "shoal run books.py --other-store --store 'my items.db'",
        ),
        ("status", Places(frontier="a b.db", store="a b.db"), {}, "shoal status --frontier 'a b.db'"),
        ("dead list a-1", Places(frontier="shoal.db", store="items.db"), {}, "shoal dead list a-1"),
        ("dead list a-1", REDIS, {"SHOAL_FRONTIER": "redis://h:6380/0"}, "shoal dead list a-1"),
        ("status", FILE, {"SHOAL_FRONTIER": "redis://h/0"}, "shoal status --frontier shoal.db"),
        ("status", FILE, {"SHOAL_STORE": "other.db"}, "shoal status --store shoal.db"),
        (
            "run books.py",
            Places(frontier="shoal.db", store="shoal.db", archive="raw pages"),
            {},
            "shoal run books.py --archive 'raw pages'",
        ),
        ("status", Places(frontier="shoal.db", store="shoal.db", archive="pages"), {}, "shoal status"),
        (
            "status",
            Places(frontier="redis://:secret@h/0", store="shoal.db"),
            {},
            "with the password in place of ***: shoal status --frontier 'redis://:***@h/0'",
        ),
        (
            "status",
            Places(frontier="redis://:secret@h/0", store="postgresql://me:secret@h/db"),
            {"SHOAL_FRONTIER": "redis://:secret@h/0"},
            "with the password in place of ***: shoal status --store 'postgresql://me:***@h/db'",
        ),
        (
            "status",
            Places(frontier="redis://:secret@h/0", store="shoal.db"),
            {"SHOAL_FRONTIER": "redis://:secret@h/0"},
            "shoal status",
        ),
    ],
)
def test_a_command_names_the_places_that_it_needs_and_no_others(
    line: str, places: Places, environ: Mapping[str, str], shown: str
) -> None:
    assert line_of(line, places, environ) == shown


def test_several_commands_are_one_line_with_one_word_on_passwords() -> None:
    places = Places(frontier="redis://:secret@h/0", store="my items.db")
    assert commands(["dead requeue a-1", "run a.py"], places, by="shoal", environ={}) == (
        "with the password in place of ***: shoal dead requeue a-1 --frontier 'redis://:***@h/0'"
        " && shoal run a.py --frontier 'redis://:***@h/0'"
    )


def crawl_with(settings: Settings, *, spider: str = "my books.py:Books") -> Crawl:
    return Crawl(
        id="books-1", spider="books", settings=msgspec.to_builtins(CrawlRecord(settings=settings, spider=spider))
    )


def test_the_command_that_resumes_a_crawl_gives_it_the_same_settings_and_the_change() -> None:
    before = Settings(
        rate="30/m",
        budget=1234567.25,
        deny=("/a,b{1,2}", "it's"),
        allow=("x.test",),
        handle_statuses=(404, 410),
        keep_versions=True,
        obey_robots=False,
    )
    again = run_again(crawl_with(before), FILE, budget=2469134.5)
    words = shlex.split(again.removeprefix(program()))
    assert words[:2] == ["run", "my books.py:Books"]
    taken = {}

    @setting_options
    def take(*, flags: dict[str, object]) -> None:
        taken.update(flags)

    click.command()(take).main(words[2:], standalone_mode=False)
    assert resolve([("command line", taken)]).values == msgspec.structs.replace(before, budget=2469134.5)


def test_the_command_that_runs_a_spider_again_has_the_options_that_were_given() -> None:
    flags = {"rate": "30/m", "deny": ["/a,b", "it's"], "obey_robots": False, "allow": "x.test,y.test"}
    given: dict[str, object] = {"workers": 4, "output": ("my books.csv",), "strict": True, "as_json": False}
    given["arguments"] = {"city": "New York"}
    line = run_line("my books.py", flags, fresh=True, **given)
    assert line == (
        "run 'my books.py' -a 'city=New York' --workers 4 -o 'my books.csv' --strict --set rate=30/m --deny /a,b"
        " --deny 'it'\"'\"'s' --set obey_robots=false --set allow=x.test,y.test"
    )
    plain: dict[str, object] = {"workers": 1, "output": (), "strict": False, "as_json": False, "arguments": {}}
    assert run_line("books.py", {}, fresh=False, **plain) == "run books.py"


def test_a_crawl_without_a_spider_file_is_resumed_by_the_command_that_began_it() -> None:
    crawl = crawl_with(Settings(budget=1.0), spider=SITE_PAGES)
    assert run_again(crawl, FILE, budget=2.0) == "the command that began it, with --set budget=2"


def test_shoal_is_called_as_the_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "shoal"
    script.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == "shoal"
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.argv", ["venv/bin/shoal", "status"])
    assert program() == "venv/bin/shoal"
    monkeypatch.setattr("sys.argv", ["/x/shoal/__main__.py", "status"])
    monkeypatch.setattr("sys.executable", "/my python/python3")
    assert program() == "'/my python/python3' -m shoal"


@pytest.mark.parametrize("url", ["redis://:***@h/0", "postgresql:///db?user=me&sslpassword=***"])
def test_a_pasted_url_without_its_password_is_refused_before_it_is_tried(url: str) -> None:
    option = click.Option(["--frontier"])
    with pytest.raises(UsageError, match="--frontier has \\*\\*\\* where a message left out a password"):
        checked_place(click.Context(click.Command("x")), option, url)
