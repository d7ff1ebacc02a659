"""The regression guard: counts what a page costs in the hot path of a worker, beside the baseline in the repository.

It buys that no change makes a page 10 % dearer unnoticed, whatever else the machine does: instructions are counted, not
seconds. Half a minute of one core under valgrind, a few seconds without it.
"""

import pytest

from bench.guard.__main__ import judged, measured
from bench.guard.counting import has_valgrind

pytestmark = pytest.mark.full


@pytest.mark.timeout(900)
def test_no_page_is_a_tenth_dearer_than_the_baseline():
    verdict = judged("instructions" if has_valgrind() else "calls")

    print("\n".join(verdict.lines))
    assert not verdict.is_dearer, "\n".join(verdict.lines)


@pytest.mark.timeout(600)
def test_counts_the_same_calls_again_to_three_hundredths():
    # In how many pieces the answers of Redis arrive differs a little from run to run.
    assert measured("calls") == pytest.approx(measured("calls"), rel=0.03)
