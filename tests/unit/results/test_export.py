from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import stat
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from canned_store import CannedStore, names_in

from shoal.errors import StorageError, UsageError
from shoal.results.export import ExportRequest, check_target, export
from shoal.store.base import ItemFilter, ItemRule
from shoal.store.sqlite.store import SqliteStore
from shoal.testing.contract.store.rows import files_no_larger_than, item
from shoal.testing.memory_store import MemoryStore

FORMATS = ["jsonl", "ndjson", "json", "csv", "parquet"]


async def csv_rows(folder: Path, *items: dict[str, Any]) -> list[list[str]]:
    await export(CannedStore(*items), folder / "out.csv")
    return list(csv.reader(io.StringIO((folder / "out.csv").read_bytes().decode(), newline="")))


async def test_json_lines_carry_the_fields_then_key_and_url(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert await export(CannedStore({"title": "Émile 🐟", "tags": ["a", {"b": None}]}, {}), out) == 2
    assert out.read_text(encoding="utf-8") == (
        '{"title":"Émile 🐟","tags":["a",{"b":null}],"_key":"k0","_url":"https://a.test/0"}\n'
        '{"_key":"k1","_url":"https://a.test/1"}\n'
    )


async def test_an_items_own_fields_are_not_overwritten(tmp_path: Path) -> None:
    await export(CannedStore({"_url": "mine", "_key": 5}), tmp_path / "out.jsonl")
    assert json.loads((tmp_path / "out.jsonl").read_text()) == {"_url": "mine", "_key": 5}


async def test_keeps_numbers_of_any_size(tmp_path: Path) -> None:
    await export(CannedStore({"n": 10**30}), tmp_path / "out.jsonl")
    assert json.loads((tmp_path / "out.jsonl").read_text())["n"] == 10**30


async def test_a_json_file_is_one_array(tmp_path: Path) -> None:
    await export(CannedStore({"a": 1}, {"a": 2}), tmp_path / "out.json")
    assert [row["a"] for row in json.loads((tmp_path / "out.json").read_text())] == [1, 2]


async def test_a_dash_is_json_lines_on_stdout(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert await export(CannedStore({"a": 1}), "-") == 1
    assert capfdbinary.readouterr().out == b'{"a":1,"_key":"k0","_url":"https://a.test/0"}\n'


async def test_nothing_on_stdout_can_steer_a_terminal(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    fields = {"title": "\x1b[2J\x7f\x9b31m\u202eevil\u2066\u2028 café €", "\x9b": "日本"}
    await export(CannedStore(fields), "-")
    written = capfdbinary.readouterr().out
    assert all(character.isprintable() or character == "\n" for character in written.decode())
    assert fields.items() <= json.loads(written).items()


@pytest.mark.parametrize("suffix", FORMATS)
async def test_no_items_make_a_valid_file(suffix: str, tmp_path: Path) -> None:
    out = tmp_path / f"out.{suffix}"
    assert await export(CannedStore(), out) == 0
    match suffix:
        case "json":
            assert json.loads(out.read_text()) == []
        case "csv":
            assert out.read_text() == "_key,_url\n"
        case "parquet":
            assert pyarrow.parquet.read_table(out).column_names == ["_key", "_url"]
        case _:
            assert out.read_bytes() == b""


async def test_csv_columns_are_all_fields_in_order_of_appearance_then_key_and_url(tmp_path: Path) -> None:
    rows = await csv_rows(tmp_path, {"b": 1, "a": 2}, {"c": 3, "a": 4}, {"_key": "own"})
    assert rows == [
        ["b", "a", "c", "_key", "_url"],
        ["1", "2", "", "k0", "https://a.test/0"],
        ["", "4", "3", "k1", "https://a.test/1"],
        ["", "", "", "own", "https://a.test/2"],
    ]


@pytest.mark.parametrize(
    "text", ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "-", "+49 30 1234"]
)
async def test_csv_cells_never_start_a_formula(text: str, tmp_path: Path) -> None:
    header, row = await csv_rows(tmp_path, {text: text})
    assert header[0] == row[0] == f"'{text}"


@pytest.mark.parametrize(
    "text", ["-5", "+5", "-5.25", "-.5", "-1e9", "+1.5E-3", "plain", "1=1", "a\rb", 'say "hi", you\n']
)
async def test_csv_keeps_plain_numbers_and_other_text_as_they_are(text: str, tmp_path: Path) -> None:
    _, row = await csv_rows(tmp_path, {"a": text})
    assert row[0] == text


@pytest.mark.parametrize("text", ["a;=1+1", "a\t=1+1", ";", "\ta", 'b;"=1"', "a,b", "a\n=1"])
async def test_csv_quotes_what_a_spreadsheet_could_take_for_two_cells(text: str, tmp_path: Path) -> None:
    header, row = await csv_rows(tmp_path, {text: text})
    written = (tmp_path / "out.csv").read_bytes().decode()
    cell = f"'{text}" if text.startswith("\t") else text
    assert header[0] == row[0] == cell
    assert written.count('"' + cell.replace('"', '""') + '"') == 2


async def test_csv_leaves_other_cells_without_quotes(tmp_path: Path) -> None:
    await csv_rows(tmp_path, {"a b": "x y|z", "c": 1.5})
    assert (tmp_path / "out.csv").read_bytes() == b"a b,c,_key,_url\r\nx y|z,1.5,k0,https://a.test/0\r\n"


async def test_csv_writes_other_values_as_json(tmp_path: Path) -> None:
    values = [-5, 1.5, True, None, ["=1"], {"a": [1, None]}, 10**30]
    _, row = await csv_rows(tmp_path, {str(number): value for number, value in enumerate(values)})
    assert row[:-2] == ["-5", "1.5", "true", "", '["=1"]', '{"a":[1,null]}', str(10**30)]


@pytest.mark.parametrize("name", ["out", "out.txt", "out.jsonl.gz", ".csv"])
def test_an_unknown_ending_is_refused_with_the_known_ones(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.jsonl, \.ndjson, \.json, \.csv or \.parquet"):
        check_target(tmp_path / name)


def test_refuses_early_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UsageError, match="is not a file"):
        check_target(tmp_path / "folder.csv")
    with pytest.raises(UsageError, match="nowhere does not exist"):
        check_target(tmp_path / "nowhere" / "out.csv")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"the folder .*/file is not a folder"):
        check_target(tmp_path / "file" / "out.csv")
    (tmp_path / "link.csv").symlink_to(tmp_path / "gone" / "out.csv")
    with pytest.raises(UsageError, match=r"link\.csv: the folder .*/gone does not exist"):
        check_target(tmp_path / "link.csv")
    with pytest.raises(UsageError, match="File name too long"):
        check_target(tmp_path / ("x" * 300 + ".csv"))
    with pytest.raises(UsageError, match="the folder /proc takes no files"):
        check_target("/proc/out.csv")


def test_a_write_protected_file_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    target.write_text("precious")
    target.chmod(0o444)
    with pytest.raises(UsageError, match="write-protected"):
        check_target(target)
    target.chmod(0o644)
    check_target(target)
    assert target.read_text() == "precious"
    assert names_in(tmp_path) == ["out.csv"]


def test_accepts_endings_in_capitals_and_stdout(tmp_path: Path) -> None:
    check_target(tmp_path / "OUT.CSV")
    check_target("-")


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("failure", [StorageError("gone"), asyncio.CancelledError(), ValueError("bug")])
async def test_a_failure_leaves_the_old_file_and_nothing_else(
    suffix: str, failure: BaseException, tmp_path: Path
) -> None:
    out = tmp_path / f"out.{suffix}"
    out.write_bytes(b"old")
    with pytest.raises(type(failure)):
        await export(CannedStore(*[{"a": 1}] * 2500, failure), out)
    assert out.read_bytes() == b"old"
    assert names_in(tmp_path) == [out.name]


@pytest.mark.parametrize("suffix", FORMATS)
async def test_a_full_disk_leaves_the_old_file_and_nothing_else(suffix: str, tmp_path: Path) -> None:
    out = tmp_path / f"out.{suffix}"
    out.write_bytes(b"old")
    items = [{"a": os.urandom(500).hex()} for _ in range(300)]
    with files_no_larger_than(50_000), pytest.raises(StorageError, match=r"cannot write .*nothing was changed"):
        await export(CannedStore(*items), out)
    assert out.read_bytes() == b"old"
    assert names_in(tmp_path) == [out.name]
    assert await export(CannedStore(*items), out) == 300


async def test_a_new_file_has_the_usual_mode_and_a_replaced_one_keeps_its_own(tmp_path: Path) -> None:
    (tmp_path / "touched").touch()
    await export(CannedStore(), tmp_path / "new.csv")
    assert (tmp_path / "new.csv").stat().st_mode == (tmp_path / "touched").stat().st_mode
    (tmp_path / "new.csv").chmod(0o640)
    await export(CannedStore(), tmp_path / "new.csv")
    assert stat.S_IMODE((tmp_path / "new.csv").stat().st_mode) == 0o640


async def test_replaces_the_file_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out.csv").symlink_to(tmp_path / "real" / "latest")
    await export(CannedStore({"a": 1}), tmp_path / "out.csv")
    assert (tmp_path / "out.csv").is_symlink()
    assert (tmp_path / "real" / "latest").read_text().startswith("a,_key,_url")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
async def test_too_many_different_fields_are_refused_for_tables(suffix: str, tmp_path: Path) -> None:
    items = [{f"{number}/{field}": 1 for field in range(100)} for number in range(101)]
    with pytest.raises(UsageError, match=r"export them to \.jsonl"):
        await export(CannedStore(*items), tmp_path / f"out.{suffix}")
    assert await export(CannedStore(*items), tmp_path / "out.jsonl") == 101


async def test_exports_one_crawl_of_one_spider_from_a_real_store(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "shoal.db")
    await store.write([item("a", crawl="c1"), item("b", crawl="c2"), item("c", spider="shoes", crawl="c3")], [])
    assert await export(store, tmp_path / "all.jsonl") == 3
    assert await export(store, tmp_path / "spider.jsonl", wanted=ExportRequest(which=ItemFilter(spider="books"))) == 2
    assert await export(store, tmp_path / "crawl.jsonl", wanted=ExportRequest(which=ItemFilter(crawl="c2"))) == 1
    assert json.loads((tmp_path / "crawl.jsonl").read_text())["_key"] == "b"
    await store.close()


@pytest.mark.parametrize(
    ("where", "keys"),
    [
        ((("stock", "5"),), ["a", "b"]),
        ((("stock", "5"), ("new", "true")), ["a"]),
        ((("stock", "null"),), ["c"]),
        ((("title", '"quoted"'),), ["b"]),
        ((("title", "quoted"),), []),
        ((("nothing", "null"),), []),
    ],
)
async def test_exports_items_with_these_values(
    where: tuple[tuple[str, str], ...], keys: list[str], tmp_path: Path
) -> None:
    store = MemoryStore()
    rows = {"a": {"stock": 5, "new": True}, "b": {"stock": "5", "title": '"quoted"'}, "c": {"stock": None}}
    await store.write([item(key, data=data) for key, data in rows.items()], [])
    assert await export(store, tmp_path / "out.jsonl", wanted=ExportRequest(where=where)) == len(keys)
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["_key"] for line in lines] == keys


async def test_exports_every_version_that_was_kept(tmp_path: Path) -> None:
    store = MemoryStore()
    for token in (1, 2):
        await store.write(
            [item(data={"v": token}, token=token, at=86_400.0 * token)], [], rule=ItemRule(keep_versions=True)
        )
    assert await export(store, tmp_path / "out.csv", wanted=ExportRequest(versions=True)) == 2
    assert list(csv.reader((tmp_path / "out.csv").read_text().splitlines())) == [
        ["v", "_key", "_url", "_version", "_changed_at"],
        ["1", "k", "https://a.test/k", "1", "1970-01-02T00:00:00+00:00"],
        ["2", "k", "https://a.test/k", "2", "1970-01-03T00:00:00+00:00"],
    ]


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
async def test_memory_does_not_grow_with_the_items(suffix: str, tmp_path: Path) -> None:
    async def peak(count: int) -> int:
        steps = [{"text": "x" * 1000}] * count
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        await export(CannedStore(*steps), tmp_path / f"out.{suffix}")
        return tracemalloc.get_traced_memory()[1] - before

    tracemalloc.start()
    try:
        await peak(10)
        small, large = await peak(2000), await peak(10_000)
    finally:
        tracemalloc.stop()
    assert large < small * 1.2


@pytest.mark.parametrize("suffix", FORMATS)
async def test_tells_how_far_it_is(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr("shoal.results.export.SHOW_SECONDS", 0.0)
    store = CannedStore(*({"n": number} for number in range(2500)))
    assert await export(store, tmp_path / f"out.{suffix}", show=lambda read, rows: seen.append((read, rows))) == 2500
    assert seen[:2] == [(1000, 0), (2000, 0)]
    assert {read for read, _ in seen[2:]} <= {2500}
    assert all(0 <= rows <= 2500 for _, rows in seen)
    assert [rows for _, rows in seen] == sorted(rows for _, rows in seen)
