"""The weeks of the fetch log: their numbers, their Mondays, and the names of the files that they are moved into."""

from __future__ import annotations

import secrets
from datetime import date, timedelta
from typing import Final

WEEK_SECONDS: Final = 7 * 86_400
MONDAY_SECONDS: Final = 4 * 86_400  # the first Monday of 1970
# How many lines are moved in one step: they are in memory at once, and dropped in one transaction.
LINES_PER_PART: Final = 20_000
_FIRST_MONDAY: Final = date(1970, 1, 5)


def week_of(at: float) -> int:
    """The number of the week of a time. Weeks begin on Monday, UTC; all before 1970 is in the first one."""
    return max(int((at - MONDAY_SECONDS) // WEEK_SECONDS), -1)


def monday_of(week: int) -> float:
    """When a week begins, in Unix time; the first one begins with all time."""
    return float(week * WEEK_SECONDS + MONDAY_SECONDS) if week >= 0 else -float("inf")


def week_text(week: int) -> str:
    """A week as its Monday: 2026-03-02."""
    return (_FIRST_MONDAY + timedelta(weeks=week)).isoformat()


def week_number(text: str) -> int:
    """The number of a week by its Monday."""
    return (date.fromisoformat(text) - _FIRST_MONDAY).days // 7


def new_name(week: int) -> str:
    """A name for a file of this week that nobody else gives, also not a copy of this store. Names of folders such as
    week=2026-03-02 are a column for programs that read many Parquet files."""
    return f"log/week={week_text(week)}/{secrets.token_hex(8)}.parquet"
