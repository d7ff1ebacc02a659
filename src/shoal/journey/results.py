"""What a page's journey ends with: how its lease ends, and the rows that must be stored before that."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.archive.base import RawPage
from shoal.model import Result
from shoal.store.base import FetchRow, ItemRow

KEY_SHOWN = 60


class Finished(msgspec.Struct, frozen=True):
    """A page's work in hand: how its lease ends, and the rows that must be stored before that.

    `unstorable` says why an item of the page became no row; then the page is a dead letter in the end. `page` is the
    raw page, where it is to be archived before everything else."""

    result: Result
    items: Sequence[ItemRow] = ()
    fetch: FetchRow | None = None
    unstorable: str = ""
    page: RawPage | None = None


def unstorable_item(key: str, why: str) -> str:
    """The reason of a page one of whose items no store takes."""
    name = key if len(key) <= KEY_SHOWN else f"{key[: KEY_SHOWN - 1]}…"
    return f"unstorable: item {name!r}: {why}".encode("utf-8", "backslashreplace").decode()
