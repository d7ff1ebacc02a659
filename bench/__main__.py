"""`make bench`: the cases one after another, `make bench CASE=A` one of them; see bench/README.md."""

from __future__ import annotations

import argparse
import importlib

from bench.case import Plan
from bench.case_main import add_options, plan_of, run_case

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
}


def main() -> None:
    options = _options()
    plan = plan_of(options)
    failed = [letter for letter in chosen(options.case) if not _runs(letter, plan)]
    if failed:
        raise SystemExit(f"failed: case {', '.join(failed)}; see above")


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


def _runs(letter: str, plan: Plan) -> bool:
    """Run one case. A case that fails says why and does not keep the others from running."""
    print(f"== case {letter}", flush=True)
    try:
        run_case(importlib.import_module(CASES[letter]).run, plan)
    except SystemExit as failure:
        print(f"case {letter} failed: {failure}", flush=True)
        return False
    return True


if __name__ == "__main__":
    main()
