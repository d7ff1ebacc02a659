from __future__ import annotations

import pytest
from rich.console import Console

from shoal.cli.display.screen import Screen

COLUMNS = ("exit", "pool", "requests", "cost", "health")
ROWS = [("datacenter/10.0.0.1:3128", "datacenter", "12", "0.00", "healthy")]


def table(capsys: pytest.CaptureFixture[str], *, width: int, terminal: bool = True) -> tuple[str, str]:
    screen = Screen()
    screen.out = Console(width=width, force_terminal=terminal, color_system=None)
    screen.table(COLUMNS, ROWS, right=("requests", "cost"), spare=("pool", "cost", "requests"))
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_a_wide_terminal_shows_all_columns(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = table(capsys, width=100)
    assert all(column in out for column in COLUMNS)
    assert err == ""


def test_columns_that_say_nothing_are_the_first_to_go_and_nobody_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = table(capsys, width=58)
    assert "cost" not in out
    assert "pool" in out
    assert err == ""


def test_then_those_that_can_be_spared_go_and_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = table(capsys, width=44)
    assert out.split() == ["exit", "requests", "health", "datacenter/10.0.0.1:3128", "12", "healthy"]
    assert err == "no room for pool: a wider terminal, a pipe or --json shows them\n"


def test_a_pipe_gets_all_columns(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = table(capsys, width=20, terminal=False)
    assert all(column in out for column in COLUMNS)
    assert err == ""
