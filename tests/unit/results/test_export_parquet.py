"""Exports to Parquet: the type of each column, lists, and what is left when it fails."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from canned_store import CannedStore, names_in

from shoal.errors import StorageError, UsageError
from shoal.results.export import GROUP_ROWS, export
from shoal.testing.contract.store.rows import files_no_larger_than
from shoal.version import install_command


async def parquet_table(folder: Path, *items: dict[str, Any]) -> pyarrow.Table:
    await export(CannedStore(*items), folder / "out.parquet")
    return pyarrow.parquet.read_table(folder / "out.parquet")


async def test_parquet_columns_have_the_type_that_keeps_every_value(tmp_path: Path) -> None:
    table = await parquet_table(
        tmp_path,
        {"int": 1, "long": 2**60, "float": 1, "text": "a", "bool": True, "none": None, "late": None},
        {"int": -2, "long": None, "float": 2.5, "text": "日本", "bool": False, "none": None, "late": 5},
    )
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {
        "int": "int64",
        "long": "int64",
        "float": "double",
        "text": "string",
        "bool": "bool",
        "none": "string",
        "late": "int64",
        "_key": "string",
        "_url": "string",
    }
    assert table.column("float").to_pylist() == [1.0, 2.5]
    assert table.column("late").to_pylist() == [None, 5]
    assert table.column("long").to_pylist() == [2**60, None]


@pytest.mark.parametrize(
    "values",
    [
        [1, "a"],
        [True, 1],
        [{"a": 1}, "x"],
        [2**63, 1],
        [2**60, 0.5],
        ["a\u0000", 1.5],
        [[1], 1],
        [[1, "a"], None],
        [[1], ["a"]],
        [[{"a": 1}], []],
        [[[1]], [1]],
        [[2**63]],
        [[[[[[[[[[1]]]]]]]]]],
    ],
)
async def test_parquet_spells_mixed_and_nested_values_as_json(values: list[Any], tmp_path: Path) -> None:
    table = await parquet_table(tmp_path, *({"v": value} for value in values))
    assert str(table.schema.field("v").type) == "string"
    read = [value if value is None else json.loads(value) for value in table.column("v").to_pylist()]
    assert read == values


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([["a", None], None, [], ["é"]], "list<element: string>"),
        ([[1, 2], [2**60]], "list<element: int64>"),
        ([[1], [0.5], [None]], "list<element: double>"),
        ([[True], [False, None]], "list<element: bool>"),
        ([[], None, []], "list<element: string>"),
        ([[["a"], []], [], [None, ["b", "c"]]], "list<element: list<element: string>>"),
    ],
)
async def test_parquet_keeps_lists_as_lists(values: list[Any], kind: str, tmp_path: Path) -> None:
    table = await parquet_table(tmp_path, *({"v": value} for value in values))
    assert str(table.schema.field("v").type) == kind
    assert table.column("v").to_pylist() == values


async def test_parquet_lists_in_more_than_one_group_have_one_type(tmp_path: Path) -> None:
    number = GROUP_ROWS + 1
    items = [{"v": [index]} for index in range(number)] + [{"v": [0.5]}]
    table = await parquet_table(tmp_path, *items)
    assert str(table.schema.field("v").type) == "list<element: double>"
    assert table.column("v").to_pylist()[-2:] == [[float(number - 1)], [0.5]]


async def test_parquet_without_pyarrow_names_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=re.escape(install_command("parquet"))):
        await export(CannedStore({"a": 1}), tmp_path / "out.parquet")
    assert names_in(tmp_path) == []


async def test_a_table_that_does_not_fit_where_its_rows_did_leaves_nothing(tmp_path: Path) -> None:
    items = [{"a" * 1000 + str(number): 1} for number in range(60)]
    with files_no_larger_than(70_000), pytest.raises(StorageError, match="cannot write"):
        await export(CannedStore(*items), tmp_path / "out.parquet")
    assert names_in(tmp_path) == []
