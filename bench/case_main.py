"""What runs a case, alone or among others: its table goes to the terminal, its results into bench/results/."""

from __future__ import annotations

import argparse
import contextlib
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import psutil

from bench.case import Case, Plan
from bench.machine import this_machine, versions
from bench.report import Record, save, terminal_report, write_documents

HERE = Path(__file__).resolve().parent
FULL_ROUNDS = 3


def main(run: Callable[[Plan], Case]) -> None:
    """The command of one case: `python -m bench.cases.NAME [--quick] [--rounds N]`."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    run_case(run, plan_of(parser.parse_args()))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="a few seconds per case, rough figures, nothing is kept")
    parser.add_argument("--rounds", type=int, help=f"runs of each system, interleaved (default {FULL_ROUNDS}, quick 1)")


def plan_of(options: argparse.Namespace) -> Plan:
    if options.rounds is not None and options.rounds < 1:
        raise SystemExit(f"--rounds {options.rounds}: at least one round is needed")
    return Plan(quick=options.quick, rounds=options.rounds or (1 if options.quick else FULL_ROUNDS))


def run_case(run: Callable[[Plan], Case], plan: Plan) -> None:
    """Measure, show, and keep what was measured; a quick run is only shown."""
    signal.signal(signal.SIGTERM, end_all)
    case = run(plan)
    print(terminal_report(case), flush=True)
    if plan.quick:
        print("  a quick run: starting and ending weigh most in it, so its figures say little", flush=True)
    else:
        date = datetime.now(UTC).date().isoformat()
        record = Record(case=case, date=date, rounds=plan.rounds, machine=this_machine(), versions=versions())
        save(record, folder=HERE / "results")
        write_documents(HERE)


def end_all(_number: int, _frame: object) -> None:
    """As Ctrl-C, which a terminal sends to all processes: what a case has started ends with it."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.terminate()
    raise KeyboardInterrupt
