"""Weeks of the fetch log: numbers, Mondays, and names of the files that weeks are moved to."""

from __future__ import annotations

import secrets
from datetime import date, timedelta
from typing import Final

WEEK_SECONDS: Final = 7 * 86_400
MONDAY_SECONDS: Final = 4 * 86_400  # the first Monday of 1970
# Lines per moved part: held in memory at once and deleted in one transaction.
LINES_PER_PART: Final = 20_000
_FIRST_MONDAY: Final = date(1970, 1, 5)


def week_of(at: float) -> int:
    """The number of the week of a time. Weeks begin on Monday, UTC; all times before 1970 are in the first week."""
    return max(int((at - MONDAY_SECONDS) // WEEK_SECONDS), -1)


def monday_of(week: int) -> float:
    """When a week begins, in Unix time; the first week has no beginning."""
    return float(week * WEEK_SECONDS + MONDAY_SECONDS) if week >= 0 else -float("inf")


def week_text(week: int) -> str:
    """The Monday of a week: 2026-03-02."""
    return (_FIRST_MONDAY + timedelta(weeks=week)).isoformat()


def week_number(text: str) -> int:
    """The number of a week, from its Monday."""
    return (date.fromisoformat(text) - _FIRST_MONDAY).days // 7


def new_name(week: int) -> str:
    """A unique file name for this week, also among copies of this store. Programs that read many Parquet files see a
    folder like week=2026-03-02 as a column."""
    return f"log/week={week_text(week)}/{secrets.token_hex(8)}.parquet"
