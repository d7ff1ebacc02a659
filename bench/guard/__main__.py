"""The guard of the hot path: `python -m bench.guard` fails when a page is 10 % dearer than the baseline says.

`--renew` counts anew and writes the baseline; `--calls` counts calls though there is a valgrind."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import msgspec

from bench.guard.counting import LARGE, SMALL, conditions_here, count, has_valgrind
from bench.guard.rules import Baseline, Unit, Verdict, compare, incomparable, per_page

BASELINE = Path(__file__).with_name("baseline.json")


def measured(unit: Unit) -> dict[str, float]:
    """What a page costs here and now, by part."""
    return per_page(count(unit), small=SMALL, large=LARGE)


def judged(unit: Unit) -> Verdict:
    """What a page costs here and now, beside the baseline."""
    baseline = msgspec.json.decode(BASELINE.read_bytes(), type=Baseline)
    return incomparable(baseline, conditions=conditions_here()) or compare(measured(unit), baseline, unit=unit)


def renew() -> None:
    """Count anew and write the baseline."""
    missing = [name for name in ("valgrind", "redis-server") if shutil.which(name) is None]
    if missing:
        raise SystemExit(f"guard: a baseline needs {' and '.join(missing)}: sudo apt-get install {' '.join(missing)}")
    baseline = Baseline(conditions=conditions_here(), instructions=measured("instructions"), calls=measured("calls"))
    BASELINE.write_bytes(msgspec.json.format(msgspec.json.encode(baseline), indent=2) + b"\n")
    for part, instructions in baseline.instructions.items():
        print(f"guard: a page with {part}: {instructions:,.0f} instructions, {baseline.calls[part]:,.0f} calls")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.guard", description=__doc__)
    parser.add_argument("--renew", action="store_true", help="count anew and write the baseline")
    parser.add_argument("--calls", action="store_true", help="count calls instead of instructions")
    flags = parser.parse_args()
    if flags.renew:
        renew()
        return
    verdict = judged("calls" if flags.calls or not has_valgrind() else "instructions")
    print("\n".join(verdict.lines))
    raise SystemExit(int(verdict.is_dearer))


if __name__ == "__main__":
    main()
