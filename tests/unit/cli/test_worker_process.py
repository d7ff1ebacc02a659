"""A worker process: what its start loads, and how often a waiting one looks for crawls."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shoal.cli.process.worker_process import LONGEST_POLL_SECONDS, POLL_SECONDS, pause_after


@pytest.mark.parametrize(
    ("look", "pause"), [(0.002, POLL_SECONDS), (0.1, 2.0), (0.4, 8.0), (60.0, LONGEST_POLL_SECONDS)]
)
def test_where_looking_takes_long_it_is_done_less_often(look: float, pause: float) -> None:
    assert pause_after(look) == pytest.approx(pause)


def test_a_worker_starts_without_what_only_people_at_a_terminal_need() -> None:
    script = "import sys, shoal.cli.worker, shoal.cli.process.worker_process; print('rich.console' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
