"""How often a worker that stays looks for crawls."""

from __future__ import annotations

import pytest

from shoal.cli.working import LONGEST_LOOK_SECONDS, LOOK_SECONDS, pause_after


@pytest.mark.parametrize(
    ("look", "pause"), [(0.002, LOOK_SECONDS), (0.1, 2.0), (0.4, 8.0), (60.0, LONGEST_LOOK_SECONDS)]
)
def test_where_looking_takes_long_it_is_done_less_often(look: float, pause: float) -> None:
    assert pause_after(look) == pytest.approx(pause)
