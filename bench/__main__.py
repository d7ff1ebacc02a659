"""`make bench`: the cases one after another, `make bench CASE=A` one of them; see bench/README.md."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import IO, NamedTuple

from bench.case import Plan
from bench.case_main import add_options, end_all, plan_of
from bench.environments import install
from bench.progress import telling

AT_ONCE_SECONDS = 5.0
CASES: dict[str, str] = {
    "A": "bench.cases.fast_host",
    "B": "bench.cases.tls",
    "C": "bench.cases.large_pages",
    "D": "bench.cases.broad",
    "E": "bench.cases.latency",
    "F": "bench.cases.frontier",
    "G": "bench.cases.kills",
    "H": "bench.cases.memory",
    "I": "bench.cases.proxies",
    "J": "bench.cases.startup",
    "K": "bench.cases.scale",
    "L": "bench.cases.watching",
    "M": "bench.cases.advice",
    "N": "bench.cases.scrapy_frontiers",
    "O": "bench.cases.pipes",
    "P": "bench.cases.sinks",
    "Q": "bench.cases.rendering",
    "R": "bench.cases.many_crawls",
}


# A quick run has two lanes of cases at the same time, one for each of two cores. Cases in one lane may use the same
# folders. The last group mostly waits, so that all of it runs at once.
QUICK_LANES = (("A", "B", "C", "N", "O", "P", "L", "R"), ("E", "F", "H", "J", "K", "Q", "DGIM"))
STOPPED = (-signal.SIGINT, -signal.SIGTERM)


class Ended(NamedTuple):
    """A case that has run. Where others use the machine as well, the processor time says more than the seconds."""

    seconds: float
    cpu_seconds: float
    is_well: bool = True


def main() -> None:
    options = _options()
    plan = plan_of(options)
    letters = chosen(options.case)
    # First of all, so that the seconds of a case are its own.
    for peer in dict.fromkeys(peer for letter in letters for peer in _peers(letter)):
        install(peer)
    signal.signal(signal.SIGTERM, end_all)
    ended: dict[str, Ended] = {}
    began = time.perf_counter()
    parts = lanes(letters, plan)
    if len(parts) > 1:
        ended = _run_lanes(parts, plan)
    else:
        for group in parts[0]:
            ended |= _run_at_once(group, plan) if len(group) > 1 else {group[0]: _run(group[0], plan)}
    print(times_told(ended, seconds=time.perf_counter() - began), flush=True)
    failed = [letter for letter, case in ended.items() if not case.is_well]
    if failed:
        raise SystemExit(f"failed: case {', '.join(failed)}; see above")


def _peers(letter: str) -> tuple[str, ...]:
    return getattr(importlib.import_module(CASES[letter]), "PEERS", ())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="shoal beside its peers, case by case")
    parser.add_argument("--case", default="", metavar="LETTERS", help="only these cases, such as A or ACJ")
    add_options(parser)
    return parser.parse_args()


def chosen(letters: str) -> list[str]:
    """The cases that are asked for, in the order of the alphabet; all when none is named."""
    wanted = {letter for letter in letters.upper() if letter.isalnum()}
    unknown = sorted(wanted - CASES.keys())
    if unknown:
        raise SystemExit(f"there is no case {', '.join(unknown)}; there are {', '.join(sorted(CASES))}")
    return sorted(wanted or CASES)


def lanes(letters: list[str], plan: Plan) -> list[list[list[str]]]:
    """The cases as they run. In a lane one group comes after another, and the cases of a group run at once."""
    if not plan.quick:
        return [[[letter] for letter in letters]]
    found = [[[letter for letter in group if letter in letters] for group in lane] for lane in QUICK_LANES]
    return [[group for group in lane if group] for lane in found if any(lane)]


def _run(letter: str, plan: Plan) -> Ended:
    """One case, in a process of its own: one that fails says why and does not keep the others from running."""
    print(f"== case {letter}", flush=True)
    return _end(letter, _start(letter, plan), began=time.perf_counter())


def _run_lanes(parts: list[list[list[str]]], plan: Plan) -> dict[str, Ended]:
    """Each lane in a thread of its own. What a case says is shown when it has ended."""
    stop = threading.Event()

    def run(lane: list[list[str]]) -> dict[str, Ended]:
        ended: dict[str, Ended] = {}
        for group in lane:
            if not stop.is_set():
                ended |= _run_at_once(group, plan, stop=stop)
        return ended

    letters = ", ".join(letter for lane in parts for group in lane for letter in group)
    with telling(f"cases {letters}, two at a time", every=AT_ONCE_SECONDS), ThreadPoolExecutor(len(parts)) as pool:
        try:
            return {letter: end for ended in pool.map(run, parts) for letter, end in ended.items()}
        except BaseException:
            stop.set()
            raise


def _run_at_once(letters: list[str], plan: Plan, *, stop: threading.Event | None = None) -> dict[str, Ended]:
    """These cases at the same time; what each says is shown when it has ended. One that was told to end sets `stop`."""

    def run(letter: str) -> Ended:
        with tempfile.TemporaryFile("w+") as said:
            process = _start(letter, plan, output=said)
            ended = _end(letter, process, began=time.perf_counter(), output=said)
            if stop is not None and process.returncode in STOPPED:
                stop.set()
            said.seek(0)
            print(f"== case {letter}\n{said.read()}", end="", flush=True)
        return ended

    with ThreadPoolExecutor(len(letters)) as pool:
        return dict(zip(letters, pool.map(run, letters), strict=True))


def _start(letter: str, plan: Plan, output: IO[str] | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", CASES[letter], "--rounds", str(plan.rounds), *(["--quick"] if plan.quick else [])]
    return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)


def _end(letter: str, process: subprocess.Popen[bytes], *, began: float, output: IO[str] | None = None) -> Ended:
    """Wait for a case; its processor time is that of all processes that it has seen the end of, servers as well."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        print(f"case {letter} failed with {process.returncode}", file=output, flush=True)
    return Ended(time.perf_counter() - began, usage.ru_utime + usage.ru_stime, not process.returncode)


def times_told(ended: dict[str, Ended], *, seconds: float) -> str:
    """What each case took, and all of them, of which some may have run at once."""
    lines = [f"case {letter} {one.seconds:.0f} s, {one.cpu_seconds:.0f} CPU-s" for letter, one in sorted(ended.items())]
    total = sum(one.cpu_seconds for one in ended.values())
    return "\n".join(["", *lines, f"in all {seconds:.0f} s, {total:.0f} CPU-s"])


if __name__ == "__main__":
    main()
