"""Schedules as shoal.toml has them: what is taken, and what is refused with the key and what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.duties.schedules.config import Schedule, Timing, load_schedules
from shoal.duties.schedules.orders import (
    Orders,
    in_force,
    with_pause,
    with_run,
    with_schedule,
    without_answered,
    without_schedule,
)
from shoal.errors import SettingError
from shoal.settings.layers import file_layer

DAILY = """
[[schedules]]
name = "books-daily"
spider = "books.py:Books"
cron = "30 6 * * mon-fri"
timezone = "Europe/Berlin"
overlap = "queue"
missed = "once"
jitter = "10m"
paused = true
workers = 4
arguments = { country = "de" }
settings = { max_pages = 100, rate = "2/s" }
"""
HEAD = '[[schedules]]\nname = "a"\nspider = "a.py"\n'


def loaded(folder: Path, text: str) -> dict[str, Schedule]:
    (folder / "shoal.toml").write_text(text)
    return load_schedules(folder / "shoal.toml")


def test_every_key(tmp_path: Path) -> None:
    assert loaded(tmp_path, DAILY)["books-daily"] == Schedule(
        name="books-daily",
        spider="books.py:Books",
        timing=Timing(cron="30 6 * * mon-fri", timezone="Europe/Berlin", jitter=600.0),
        overlap="queue",
        missed="once",
        paused=True,
        workers=4,
        arguments={"country": "de"},
        settings={"max_pages": 100, "rate": "2/s"},
    )
    # The file is one of settings, too, which know the table.
    assert file_layer(tmp_path / "shoal.toml")[1] == {}


def test_a_file_without_schedules_and_no_file(tmp_path: Path) -> None:
    assert load_schedules(tmp_path / "shoal.toml") == loaded(tmp_path, 'rate = "1/s"\n') == {}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (HEAD + 'evry = "6h"\n', "unknown key 'evry'; did you mean 'every'?"),
        (HEAD, "write one of cron"),
        (HEAD + 'every = "6h"\ncron = "* * * * *"\n', "write one of cron"),
        (HEAD + 'every = "6 hours"\n', "every: duration '6 hours' is not understood"),
        (HEAD + 'every = "0.5s"\n', "every: '0.5s' is no whole number of seconds"),
        (HEAD + 'every = "3651d"\n', "from 1s to 3650d"),
        (HEAD + 'every = "1h"\njitter = "1h"\n', "jitter: 1h is not shorter than every = '1h'"),
        (HEAD + 'every = "1h"\ntimezone = "UTC"\n', "timezone: an interval is the same in every time zone"),
        (HEAD + 'cron = "99 6 * * *"\n', "cron: '99' is no minute"),
        (HEAD + 'cron = "0 6 * * *"\ntimezone = "Europe/Berln"\n', "did you mean 'Europe/Berlin'?"),
        (HEAD + 'every = "1h"\noverlap = "drop"\n', "overlap: write skip or queue or cancel, not 'drop'"),
        (HEAD + 'every = "1h"\nmissed = "all"\n', "missed: write skip or once, not 'all'"),
        (HEAD + 'every = "1h"\nworkers = 0\n', "workers: write a number from 1 to 256"),
        (HEAD + 'every = "1h"\nworkers = "2"\n', "workers: expected `int`"),
        (HEAD + 'every = "1h"\nsettings = { raet = "1/s" }\n', "did you mean 'rate'?"),
        (HEAD + 'every = "1h"\nsettings = { max_pages = "x" }\n', "'max_pages'"),
        (HEAD + 'every = "1h"\narguments = { "a-b" = "x" }\n', "arguments: 'a-b' is no name"),
        (HEAD + f'every = "1h"\narguments = {{ a = "{"x" * 17_000}" }}\n', "larger than 16 KiB"),
        ('[[schedules]]\nspider = "a.py"\nevery = "1h"\n', "[[schedules]] number 1 in"),
        ('[[schedules]]\nname = "a b"\nspider = "a.py"\nevery = "1h"\n', "it needs a name of letters"),
        ('[[schedules]]\nname = "a"\nevery = "1h"\n', "it needs the file of a spider"),
        ('[schedules]\nname = "a"\n', "write it with two brackets"),
        (2 * (HEAD + 'every = "1h"\n'), "there are two of this name"),
        ("[[schedules]\n", "is not valid TOML"),
    ],
)
def test_a_mistake_is_refused_in_one_line_that_names_it(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(SettingError) as error:
        loaded(tmp_path, text)
    assert named in str(error.value)
    assert "shoal.toml" in str(error.value)
    assert "\n" not in str(error.value).replace(str(tmp_path), "")


def schedule(name: str, spider: str = "a.py") -> Schedule:
    return Schedule(name=name, spider=spider, timing=Timing(every=60))


def test_schedules_of_the_file_win_and_the_latest_word_on_pauses_wins_over_both() -> None:
    orders = with_schedule(with_schedule(Orders(), schedule("a", "api.py")), schedule("b", "api.py"))
    assert {name: one.spider for name, one in in_force({"a": schedule("a")}, orders).items()} == {
        "a": "a.py",
        "b": "api.py",
    }
    paused = with_pause(orders, "a", paused=True)
    assert [one.paused for one in in_force({"a": schedule("a")}, paused).values()] == [True, False]


def test_what_was_ordered_of_a_schedule_goes_with_it() -> None:
    orders = with_run(with_pause(with_schedule(Orders(), schedule("a")), "a", paused=True), "a", at=1.0, key="k")
    assert without_answered(orders, frozenset({"k"})).asked == ()
    assert without_schedule(orders, "a") == Orders()
