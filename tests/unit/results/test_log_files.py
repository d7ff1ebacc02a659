"""Log lines as Parquet: every value comes back, and a file that does not have them all is an error."""

from __future__ import annotations

import io
import sys
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from shoal.errors import StorageError, UsageError
from shoal.results.log_files import as_parquet, check_log_archive, write_part
from shoal.settings.table import Settings
from shoal.store.base import LogPart
from shoal.testing.contract.store.rows import fetch

NAME = "log/week=2026-03-02/a.parquet"


class FaultyArchive:
    """Gives back other bytes than it was given."""

    def __init__(self, octets: bytes) -> None:
        self._octets = octets

    async def write_log(self, name: str, octets: bytes) -> None:
        pass

    async def read_log(self, name: str) -> bytes:
        return self._octets


def rows_of(octets: bytes) -> list[dict[str, Any]]:
    return list(pyarrow.parquet.read_table(io.BytesIO(octets)).to_pylist())


def test_lines_come_in_the_order_of_time_with_their_hosts() -> None:
    lines = [
        fetch(1, at=300.000001, url="https://a.test:8080/x"),
        fetch(-(2**63), at=100.5, url="garbage", error="é🐟\n"),
        fetch(3, at=200.0, url="https://b.test", parent=2**63 - 1, elapsed=0.25),
    ]
    rows = rows_of(as_parquet(lines))
    assert [(row["key"], row["host"]) for row in rows] == [(-(2**63), ""), (3, "b.test"), (1, "a.test:8080")]
    assert [row["at"].timestamp() for row in rows] == [100.5, 200.0, 300.000001]
    assert (rows[0]["error"], rows[1]["parent"], rows[1]["elapsed"]) == ("é🐟\n", 2**63 - 1, 0.25)


def test_a_time_that_is_none_keeps_no_line_out() -> None:
    assert [row["key"] for row in rows_of(as_parquet([fetch(1, at=-1e300), fetch(2, at=-5.5)]))] == [1, 2]


def test_no_lines_are_a_file_with_all_columns() -> None:
    table = pyarrow.parquet.read_table(io.BytesIO(as_parquet([])))
    assert table.num_rows == 0
    assert table.schema.field("key").type == pyarrow.int64()
    assert table.schema == pyarrow.parquet.read_table(io.BytesIO(as_parquet([fetch(1)]))).schema


@pytest.mark.parametrize(
    ("octets", "complaint"),
    [
        (as_parquet([fetch(1)]), r"a\.parquet has 1 log line where 2 were written"),
        (as_parquet([fetch(1), fetch(2)])[:-9], "is damaged in the archive"),
        (b"", "is damaged in the archive"),
        (b"garbage" * 100, "is damaged in the archive"),
        (b"PAR1" + b"\xff" * 64 + b"PAR1", "is damaged in the archive"),
    ],
)
async def test_a_file_that_does_not_have_all_lines_is_an_error(octets: bytes, complaint: str) -> None:
    archive: Any = FaultyArchive(octets)
    with pytest.raises(StorageError, match=complaint):
        await write_part(archive, LogPart(name=NAME, week="2026-03-02", lines=[fetch(1), fetch(2)]))


async def test_without_pyarrow_the_install_command_is_named_before_a_crawl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    settings = Settings(retention="90d", retention_archive="pages")
    with pytest.raises(UsageError, match=r"pip install 'shoal\[parquet\]'"):
        await check_log_archive(settings, store="shoal.db")
