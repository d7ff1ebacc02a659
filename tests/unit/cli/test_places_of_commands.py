"""Every command that takes a place takes it from the place's variable, too: a new command cannot forget it."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from docs_pages import ROOT
from shoal.cli.main import COMMANDS, shoal
from shoal.settings.layers import NO_SETTINGS
from shoal.settings.table import PLACE_VARIABLES
from shoal.settings.variables import VARIABLES, check_names

# Attacks what it is given: never what a fleet's variables name.
ATTACKS = "shoal chaos"
URLS = {
    "frontier": "other.db",
    "store": "items.db",
    "archive": "pages",
    "pipe": "amqp://h/",
    "sink": "a.jsonl",
    "inbox": "incoming",
}
# URLs that are no places of a crawl.
OTHER_URLS = {"--from", "--url", "--retention-archive"}


def commands(
    found: click.Command = shoal, name: str = "shoal", parent: click.Context | None = None
) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(found, click.Group):
        yield name, found
        return
    context = click.Context(found, info_name=name, parent=parent)
    for word in found.list_commands(context):
        if (inner := found.get_command(context, word)) is not None:
            yield from commands(inner, f"{name} {word}", context)


def places() -> list[tuple[str, str, click.Option, click.Command]]:
    return [
        (name, place, option, command)
        for name, command in commands()
        for option in command.params
        if isinstance(option, click.Option)
        for place in PLACE_VARIABLES
        if f"--{place}" in option.opts
    ]


@pytest.mark.parametrize(
    ("name", "place", "option", "command"),
    [pytest.param(*case, id=f"{case[0]} {case[1]}") for case in places() if case[0] != ATTACKS],
)
def test_a_command_takes_a_place_from_its_variable_and_a_flag_wins_over_it(
    name: str, place: str, option: click.Option, command: click.Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLACE_VARIABLES[place], URLS[place])
    many = option.multiple
    with click.Context(command, info_name=name) as context:
        assert option.name is not None
        found, source = option.consume_value(context, {})
        assert (option.type_cast_value(context, found), source) == (
            (URLS[place],) if many else URLS[place],
            click.core.ParameterSource.ENVIRONMENT,
        )
        found, source = option.consume_value(context, {option.name: ("given",) if many else "given"})
        assert (found, source) == (("given",) if many else "given", click.core.ParameterSource.COMMANDLINE)
    help_record = option.get_help_record(click.Context(command))
    assert help_record is not None
    assert f"env var: {PLACE_VARIABLES[place]}" in help_record[1], "the help of the flag names its variable"


def test_the_commands_that_take_places_were_found() -> None:
    found = {(name, place) for name, place, _, _ in places()}
    assert {
        ("shoal sql", "store"), ("shoal store tidy", "store"), ("shoal sink send", "store"),
        ("shoal page", "archive"), ("shoal run", "sink"), ("shoal worker", "pipe"), ("shoal why", "frontier"),
    } <= found  # fmt: skip
    assert len(found) > 60


def test_only_the_command_that_attacks_takes_its_places_from_flags_alone() -> None:
    attacked = [(place, option) for name, place, option, _ in places() if name == ATTACKS]
    assert len(attacked) == 3
    assert [option.envvar for _, option in attacked] == [None] * 3


def test_no_place_hides_behind_another_flag() -> None:
    named = {f"--{place}" for place in PLACE_VARIABLES}
    others = {
        option.opts[0]
        for _, command in commands()
        for option in command.params
        if isinstance(option, click.Option) and option.metavar == "URL"
    }
    assert others - named == OTHER_URLS


def test_several_sinks_stand_in_one_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_SINK", "a.jsonl redis://h/0#list=books")
    (option,) = [option for name, place, option, _ in places() if (name, place) == ("shoal run", "sink")]
    with click.Context(click.Command("run")) as context:
        found, _ = option.consume_value(context, {})
        assert option.type_cast_value(context, found) == ("a.jsonl", "redis://h/0#list=books")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SHOAL_FRONTEIR", "SHOAL_FRONTIER"),
        ("SHOAL_STOER", "SHOAL_STORE"),
        ("SHOAL_SINKS", "SHOAL_SINK"),
        ("SHOAL_STORE_URL", "SHOAL_STORE"),
        ("SHOAL_ARCHIVE_PASSWORD_FILE", "SHOAL_ARCHIVE"),
        ("SHOAL_FRONTIER_FIEL", "SHOAL_FRONTIER_FILE"),
    ],
)
def test_a_slip_in_the_name_of_a_variable_is_refused_by_commands_that_read_no_settings(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, "anywhere")
    with pytest.raises(SystemExit) as ended:
        shoal.main(["crawls"])
    line = f"shoal: the variable {name} has no meaning: did you mean {meant}?\n"
    assert (ended.value.code, capsys.readouterr().err) == (2, line)


def test_variables_that_others_may_have_set_are_left_alone() -> None:
    # As Kubernetes makes them for services called shoal and shoal-store; settings; a file with a secret.
    names = ("PORT", "SERVICE_HOST", "STORE_SERVICE_HOST", "STORE_CONNECTIONS", "RATE", "FRONTIER_PASSWORD_FILE")
    check_names({f"SHOAL_{name}": "x" for name in names} | {"SHOAL": "x", "STOER": "x"})


def test_every_variable_is_in_the_table_and_in_the_documents() -> None:
    assert set(VARIABLES) == NO_SETTINGS
    reference = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in reference for name in VARIABLES)
    how_to = (ROOT / "docs/how-to/settings.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in how_to for name in PLACE_VARIABLES.values())
    assert len(COMMANDS) > 20
