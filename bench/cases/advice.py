"""Case M: what `shoal advise` says twice the workers bring, and what they bring: `python -m bench.cases.advice`."""

from __future__ import annotations

import asyncio
import statistics

from bench.advice_crawls import Found, Trial, doubled, trials
from bench.case import Case, Figure, Plan
from bench.case_main import main
from bench.cases.latency import Shape, site
from bench.machine import load_notes

PAGES = 16_000
DELAY_SECONDS = 0.1
MEASURED_SECONDS, QUICK_SECONDS = 6.0, 2.0
WITHIN = 0.25


def run(plan: Plan) -> Case:
    seconds = QUICK_SECONDS if plan.quick else MEASURED_SECONDS
    busy = load_notes()
    found: list[Found] = []
    with site(Shape("one host", 1, PAGES), delay=DELAY_SECONDS) as starts, trials(starts[0]) as all_trials:
        for _ in range(plan.rounds):
            # Those that do not need the cores mostly wait: they run at the same time.
            for group in (all_trials[:1], all_trials[1:]):
                found += asyncio.run(_found(group, seconds=seconds))
    return _case(found, seconds, busy)


async def _found(group: list[Trial], *, seconds: float) -> list[Found]:
    found = await asyncio.gather(*(doubled(trial, seconds=seconds) for trial in group))
    for one in found:
        said = f"bound by {one.advice.bound or 'nothing'}, doubling {one.said:.2f} times said"
        print(f"M: {one.what}: {said}, {one.gain:.2f} measured", flush=True)
    return found


def _case(found: list[Found], seconds: float, busy: list[str]) -> Case:
    by_thing = {what: [one for one in found if one.what == what] for what in dict.fromkeys(one.what for one in found)}
    return Case(
        letter="M",
        title="advice: what twice the workers bring",
        how=[
            "A site that takes 100 ms for a page, one host; of little bandwidth, a site behind a line of 2 MB/s. The"
            " slow store is a PostgreSQL of which each write takes 0.2 s, the exits are ten proxies at three requests"
            f" per second each. The crawl is measured with one worker for {seconds:g} s, which gives what `shoal"
            " advise` says; then a second worker joins it, and it is measured again. Medians. The heavy handler runs"
            " alone, the others at the same time: they mostly wait.",
        ],
        columns=["bound by", "named", "pages/s with one", "with two", "times", "times said"],
        rows=[_row(what, some) for what, some in by_thing.items()],
        figures=[
            Figure(
                what=f"{what}: what was said, away from what was measured",
                value=100 * statistics.median(one.error for one in some),
                wanted=100 * WITHIN,
                sense="at most",
                unit="%",
            )
            for what, some in by_thing.items()
        ],
        notes=[
            *busy,
            *(
                f"{one.what}: in one round it said that {one.advice.bound or 'nothing'} bounds it"
                for one in found
                if one.advice.bound != one.named
            ),
        ],
    )


def _row(what: str, some: list[Found]) -> list[str]:
    return [
        what,
        ", ".join(dict.fromkeys(one.advice.bound or "nothing" for one in some)),
        f"{statistics.median(one.rate for one in some):,.1f}",
        f"{statistics.median(one.doubled for one in some):,.1f}",
        f"{statistics.median(one.gain for one in some):.2f}",
        f"{statistics.median(one.said for one in some):.2f}",
    ]


if __name__ == "__main__":
    main(run)
