"""Commands that need no crawl: help, settings, and what bad usage is told."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from command_line import Folder

from shoal.cli.crawl_choice import choose
from shoal.cli.display.lines import one_line, shown
from shoal.cli.display.numbers import duration, moment_given, per_second, several, size
from shoal.cli.display.screen import Screen
from shoal.cli.main import COMMANDS, GROUPS, shoal
from shoal.errors import UsageError
from shoal.model import Crawl
from shoal.version import __version__

ROOT = Path(__file__).parents[2]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(shoal, list(arguments))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    return Folder(tmp_path)


def refusal(*arguments: str, code: int = 2) -> str:
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("shoal: ")
    return line


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does_and_shows_an_example(name: str) -> None:
    result = invoke(name, "--help")
    assert result.exit_code == 0
    assert f"Example: shoal {name}" in result.stdout


@pytest.mark.parametrize("name", ["list", "requeue", "drop"])
def test_the_commands_for_dead_letters_show_an_example(name: str) -> None:
    assert f"Example: shoal dead {name}" in invoke("dead", name, "--help").stdout


def test_help_lists_every_command_in_its_group() -> None:
    text = invoke("--help").stdout
    lines = [line for line in text[text.index("Start:") :].splitlines() if line.strip()]
    assert [line.strip(":") for line in lines if not line.startswith(" ")] == list(GROUPS)
    assert [line.split()[0] for line in lines if line.startswith(" ")] == list(COMMANDS)


def test_without_a_command_help_is_shown() -> None:
    assert invoke().stdout == invoke("--help").stdout


def test_loading_the_group_loads_no_command() -> None:
    source = "import sys, shoal.cli.main; print([m for m in sys.modules if m.startswith(('rich', 'shoal.cli.'))])"
    out = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "['shoal.cli.main']"


def test_the_version_is_told() -> None:
    assert invoke("--version").stdout == f"shoal {__version__}\n"


def test_an_unknown_command_is_one_line_with_the_way_to_help() -> None:
    line = refusal("rum", "books.py")
    assert "No such command 'rum'" in line
    assert "shoal --help" in line


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["stauts"], "No such command 'stauts'. Did you mean 'status'? `shoal --help` shows how"),
        (["dead", "lst"], "No such command 'lst'. Did you mean 'list'? `shoal dead --help` shows how"),
        (["run", "--workrs", "3"], "Did you mean '--workers'? `shoal run --help` shows how"),
        (["run", "boks.py"], "no spider file boks.py: did you mean books.py?"),
        (["run", "far/boks.py"], "no spider file far/boks.py: check the path"),
        (["chaos", "--kills", "few"], "Invalid value for '--kills': 'few' is not a whole number;"),
    ],
)
def test_a_slip_is_one_line_with_what_was_meant(folder: Folder, given: list[str], meant: str) -> None:
    (folder.path / "books.py").touch()
    assert meant in folder.refusal(*given)


def test_a_crawl_that_is_not_there_is_refused_with_the_one_that_was_meant() -> None:
    crawls = [Crawl(id="books-2", spider="books"), Crawl(id="news-1", spider="news")]
    with pytest.raises(UsageError, match=r"no crawl 'boks-2'; did you mean books-2\? There are books-2, news-1"):
        choose(crawls, "boks-2")
    with pytest.raises(UsageError, match="no crawl 'zzz'; there are books-2, news-1"):
        choose(crawls, "zzz")


@pytest.mark.parametrize("group", ["dead", "store"])
def test_a_group_without_a_command_shows_its_help_as_a_page(folder: Folder, group: str) -> None:
    shown = folder.run(group, code=2)
    assert shown.stdout == ""
    assert shown.stderr.startswith(f"Usage: shoal {group} [OPTIONS] COMMAND [ARGS]...\n\n")


@pytest.mark.parametrize("line", ["status", "dead requeue", "export", "add"])
def test_help_says_what_crawl_stands_for(folder: Folder, line: str) -> None:
    assert "CRAWL is a crawl's id, or a spider's name" in folder.run(*line.split(), "--help").stdout


def test_an_unknown_option_is_one_line_with_the_way_to_help() -> None:
    assert "`shoal run --help`" in refusal("run", "books.py", "--wrokers", "3")


def test_settings_are_listed_with_their_value_and_where_it_came_from(folder: Folder) -> None:
    (folder.path / "shoal.toml").write_text("per_host = 3\n")
    rows = json.loads(invoke("settings", str(ROOT / "examples/books.py"), "--depth", "2", "--json").stdout)
    assert (rows["rate"]["value"], rows["rate"]["from"]) == ("4/s", "spider Books")
    assert (rows["per_host"]["value"], rows["per_host"]["from"]) == (3, "shoal.toml")
    assert (rows["max_depth"]["value"], rows["max_depth"]["from"]) == (2, "command line")
    assert rows["concurrency"]["from"] == "default"
    assert all(row["help"] for row in rows.values())


def test_settings_are_a_table_for_people(folder: Folder) -> None:
    lines = invoke("settings", "--ignore-robots", "--set", "lease_seconds=5").stdout.splitlines()
    assert lines[0].split() == ["setting", "value", "from", "what", "it", "is", "for"]
    assert any(line.split()[:4] == ["obey_robots", "false", "command", "line"] for line in lines)
    assert any(line.split()[:2] == ["lease_seconds", "5"] for line in lines)


def test_an_unknown_setting_is_refused_with_what_was_meant(folder: Folder) -> None:
    assert "did you mean 'max_depth'?" in refusal("settings", "--set", "max_dept=3")


def test_a_setting_of_the_wrong_kind_is_refused(folder: Folder) -> None:
    assert "per_host" in refusal("crawl", "http://127.0.0.1/", "--per-host", "many")
    assert "4/s, 30/m" in refusal("crawl", "http://127.0.0.1/", "--rate", "fast")
    assert "NAME=VALUE" in refusal("settings", "--set", "rate")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "no spider file books.py"),
        ("class Books(", "line 1"),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("x = 1", "has no spider"),
        ("from shoal import Spider\nclass A(Spider): pass\nclass B(Spider): pass", "name one, as in books.py:A"),
        ("from shoal import Spider\nclass Books(Spider): pass", "has no start"),
        ("from shoal import Spider\nclass Books(Spider):\n    start = ['nonsense']", "did you mean https://nonsense"),
        ("from shoal import Spider\nclass Books(Spider):\n    start = 'http://a/'\n    max_depth = 'x'", "max_depth"),
    ],
)
def test_an_unusable_spider_is_one_line_and_leaves_nothing_behind(
    folder: Folder, source: str | None, said: str
) -> None:
    if source is not None:
        (folder.path / "books.py").write_text(source)
    assert said in refusal("run", "books.py")
    assert not (folder.path / "shoal.db").exists()


@pytest.mark.parametrize("url", ["nonsense", "ftp://example.com/", "http://", "https://me:secret@example.com/"])
def test_an_unusable_url_is_one_line(folder: Folder, url: str) -> None:
    assert "secret" not in refusal("crawl", url)


@pytest.mark.parametrize("name", ["books.xls", "books", "no/folder/books.csv"])
def test_an_output_that_cannot_be_written_is_refused_before_the_crawl(folder: Folder, name: str) -> None:
    assert name in refusal("crawl", "http://127.0.0.1:9/", "-o", name)
    assert not (folder.path / "shoal.db").exists()


def test_looking_at_a_file_that_is_not_there_does_not_make_one(folder: Folder) -> None:
    for command in (["status"], ["top"], ["why", "http://a/"], ["dead", "list"], ["pause"], ["export", "-o", "a.csv"]):
        assert "there is no shoal.db here" in refusal(*command)
    assert list(folder.path.iterdir()) == []


def test_a_foreign_database_is_left_alone(folder: Folder) -> None:
    with sqlite3.connect("shoal.db") as db:
        db.execute("CREATE TABLE birds (name TEXT)")
    db.close()
    before = Path("shoal.db").read_bytes()
    assert "another program" in refusal("crawl", "http://127.0.0.1:9/", code=1)
    assert Path("shoal.db").read_bytes() == before


def test_a_file_that_is_no_database_is_left_alone(folder: Folder) -> None:
    Path("shoal.db").write_text("a shopping list, much longer than any header of a database would be " * 20)
    before = Path("shoal.db").read_bytes()
    assert "not a shoal database" in refusal("status", code=1)
    assert Path("shoal.db").read_bytes() == before


def test_a_database_of_a_newer_shoal_is_refused(folder: Folder) -> None:
    invoke("crawl", "http://127.0.0.1:9/", "--max-pages", "1", "--deny", ".")
    with sqlite3.connect("shoal.db") as db:
        db.execute("UPDATE shoal_schema SET version = 99")
    db.close()
    assert "newer shoal" in refusal("status", code=1)


def test_an_unknown_kind_of_frontier_is_refused(folder: Folder) -> None:
    assert "carrier-pigeon://" in refusal("crawl", "http://127.0.0.1:9/", "--frontier", "carrier-pigeon://roof")


@pytest.mark.parametrize("url", ["redis:/me:hunter2@h/0", "me:hunter2@h:6379", "redis:me:hunter2@h"])
@pytest.mark.parametrize("option", ["frontier", "store", "archive"])
def test_a_servers_url_with_a_slip_is_no_files_name(folder: Folder, option: str, url: str) -> None:
    said = refusal("crawl", "http://127.0.0.1:9/", f"--{option}", url)
    assert f"--{option} looks like a server's URL" in said
    assert "hunter2" not in said
    assert list(folder.path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "url", "meant"),
    [
        ("frontier", "redis:127.0.0.1", "redis://127.0.0.1"),
        ("frontier", "redis:/127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("frontier", "rediss+sentinel:h", "rediss+sentinel://h"),
        ("frontier", "unix:/tmp/redis.sock", "unix:///tmp/redis.sock"),
        ("store", "postgresql:db.example/shop", "postgresql://db.example/shop"),
        ("store", "postgres:db.example", "postgres://db.example"),
        ("store", "sqlite:items.db", "sqlite:///items.db"),
        ("archive", "s3:bucket/pages", "s3://bucket/pages"),
    ],
)
def test_a_scheme_without_its_slashes_is_asked_about(folder: Folder, option: str, url: str, meant: str) -> None:
    said = refusal("crawl", "http://127.0.0.1:9/", f"--{option}", url)
    assert said.strip() == f"shoal: --{option} {url}: did you mean {meant}?"
    assert list(folder.path.iterdir()) == []


def test_a_scheme_without_its_slashes_is_asked_about_in_the_environment(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_FRONTIER", "redis:127.0.0.1")
    said = refusal("crawl", "http://127.0.0.1:9/")
    assert said.strip() == "shoal: SHOAL_FRONTIER redis:127.0.0.1: did you mean redis://127.0.0.1?"
    assert list(folder.path.iterdir()) == []


def test_the_environment_may_name_frontier_and_store_and_the_command_line_wins(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_FRONTIER", "tasks.db")
    monkeypatch.setenv("SHOAL_STORE", "items.db")
    invoke("crawl", "http://127.0.0.1:9/", "--max-pages", "1", "--deny", ".")
    assert {path.name for path in folder.path.glob("*.db")} == {"tasks.db", "items.db"}
    assert invoke("status").exit_code == 0
    assert "there is no other.db" in refusal("status", "--frontier", "other.db")
    assert "there is no crawl yet" in refusal("dead", "list", "--frontier", "items.db")


def test_nothing_of_a_page_can_steer_the_terminal() -> None:
    assert shown("\x1b[2Jgone\x07\r\nnext\x9b1m") == "\\x1b[2Jgone\\x07\nnext\\x9b1m"
    assert one_line("a\n  b\tc" * 30, 10) == "a b ca b …"


def test_nothing_of_a_page_can_steer_the_terminal_by_json(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().json({"title": "\x1b[2J\x9b31m\u202eevil"})
    written = capsys.readouterr().out
    assert written == '{"title":"\\u001b[2J\\u009b31m\\u202eevil"}\n'


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (0.25, "250 ms"), (5.25, "5.2 s"), (59.6, "1 m 00 s"), (147_600, "1 d 17 h"), (5400, "1 h 30 m")],
)
def test_durations_are_told_in_their_two_largest_units(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_figures_are_told_as_people_read_them() -> None:
    assert (per_second(0.5), per_second(12.34), per_second(2500)) == ("0.50/s", "12.3/s", "2,500/s")
    assert (size(999), size(1_500), size(250_000_000)) == ("999 B", "1.5 kB", "250 MB")
    assert (several(1, "page"), several(2000, "page")) == ("1 page", "2,000 pages")


def test_a_point_in_time_is_given_as_an_age_or_a_date() -> None:
    assert moment_given("2h", now=10_000) == 2800
    assert moment_given("2026-05-12T14:00+00:00") == 1_778_594_400
    with pytest.raises(UsageError, match="the time 'yesterday' is not understood"):
        moment_given("yesterday")


def test_a_closed_pipe_is_no_failure_to_shout_about(folder: Folder) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "shoal", "settings"]
        result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, cwd=folder.path)
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


def test_the_commands_are_what_click_takes_them_for() -> None:
    with click.Context(shoal) as context:
        assert all(shoal.get_command(context, name) is not None for name in COMMANDS)
        assert shoal.get_command(context, "nothing") is None
