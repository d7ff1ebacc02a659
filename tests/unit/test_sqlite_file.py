"""What `shoal.db` refuses, and how it says so."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from shoal.errors import StorageError
from shoal.sqlite_file import APPLICATION_ID, STEPS, FileConnection, connect, insert_rows, storage_errors, transaction

SCHEMA = "CREATE TABLE thing (a INTEGER); -- one; two\nCREATE TABLE other (\n    b TEXT\n);\n"
MIGRATION = "ALTER TABLE thing ADD COLUMN c INTEGER;\nUPDATE thing SET c = a + 1;\n"


def open_part(path: Path, *later: str, part: str = "things", create: bool = True) -> FileConnection:
    """Open the file with the tables of a part, as a shoal with these later steps does."""
    schema = SCHEMA.replace("thing", part.rstrip("s")).replace("other", f"{part}_other")
    with TemporaryDirectory() as folder:
        steps = [Path(folder, f"{number}.sql") for number in range(1 + len(later))]
        for step, script in zip(steps, (schema, *later), strict=True):
            step.write_text(script)
        return connect(path, part=part, steps={part: steps}, create=create)


def open_and_close(path: Path) -> None:
    open_part(path).close()


def test_makes_the_tables_of_each_part_once(tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    for part in ("things", "beasts", "things"):
        open_part(path, part=part).close()
    connection = open_part(path)
    assert connection.execute("SELECT part, version FROM shoal_schema ORDER BY part").fetchall() == [
        ("beasts", 1),
        ("things", 1),
    ]
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_processes_that_create_the_file_together_all_succeed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=open_and_close, args=(tmp_path / "shoal.db",)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]


def test_refuses_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("milk, bread\n" * 100)
    with pytest.raises(StorageError, match=r"notes.txt is not a shoal database: choose another file"):
        open_part(path)
    assert path.read_text().startswith("milk")


def test_refuses_and_leaves_alone_the_database_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE mail (a)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(StorageError, match="is a database of another program"):
        open_part(path)
    assert path.read_bytes() == before


def test_refuses_a_newer_file(tmp_path: Path) -> None:
    open_part(tmp_path / "shoal.db", MIGRATION).close()
    with pytest.raises(StorageError, match="newer shoal: upgrade shoal"):
        open_part(tmp_path / "shoal.db")


@pytest.mark.parametrize("newer", STEPS)
def test_one_newer_part_refuses_the_file_to_every_part_and_leaves_it_alone(tmp_path: Path, newer: str) -> None:
    path = tmp_path / "shoal.db"
    for part in STEPS:
        connect(path, part=part).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE shoal_schema SET version = 99 WHERE part = ?", (newer,))
    before = path.read_bytes()
    for part in STEPS:
        with pytest.raises(StorageError, match="was written by a newer shoal: upgrade shoal"):
            connect(path, part=part)
    assert path.read_bytes() == before


def test_runs_a_later_step_once_in_a_file_that_lacks_it_and_in_a_new_one(tmp_path: Path) -> None:
    former, new = tmp_path / "shoal.db", tmp_path / "new.db"
    with closing(open_part(former)) as db:
        db.execute("INSERT INTO thing (a) VALUES (1)")
    for _ in range(2):
        with closing(open_part(former, MIGRATION)) as db:
            assert db.execute("SELECT a, c FROM thing").fetchall() == [(1, 2)]
            assert db.execute("SELECT part, version FROM shoal_schema").fetchall() == [("things", 2)]
    with closing(open_part(new, MIGRATION)) as db:
        assert db.execute("SELECT a, c FROM thing").fetchall() == []


def test_a_later_step_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    open_part(path).close()
    with closing(sqlite3.connect(path)) as db:
        before = list(db.iterdump())
        with pytest.raises(StorageError, match="other already exists"):
            open_part(path, MIGRATION + "CREATE TABLE things_other (b);\n")
        assert list(db.iterdump()) == before


def test_refuses_a_folder_and_a_path_that_leads_nowhere(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is a folder"):
        open_part(tmp_path)
    with pytest.raises(StorageError, match="check that its folder exists"):
        open_part(tmp_path / "missing" / "shoal.db")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_refuses_a_file_it_may_not_read(tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    open_part(path).close()
    path.chmod(0)
    with pytest.raises(StorageError, match="cannot be"):
        open_part(path)


def test_opens_a_file_that_is_there_and_makes_none(tmp_path: Path) -> None:
    path = tmp_path / "a #1?.db"
    with pytest.raises(StorageError, match=r"a #1\?\.db is gone: put it back"):
        open_part(path, create=False)
    assert list(tmp_path.iterdir()) == []
    open_and_close(path)
    open_part(path, create=False).close()
    assert list(tmp_path.iterdir()) == [path]


def test_says_that_the_file_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.sqlite_file.BUSY_SECONDS", 0.05)
    holder = open_part(tmp_path / "shoal.db")
    with transaction(holder), pytest.raises(StorageError, match="locked by another process"):
        open_part(tmp_path / "shoal.db", part="beasts")
    holder.close()


def test_says_that_the_disk_is_full_and_keeps_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    connection = open_part(path)
    with transaction(connection):
        connection.execute("INSERT INTO thing (a) VALUES (1)")
    connection.execute("PRAGMA max_page_count = 10")
    with (
        pytest.raises(StorageError, match="the disk is full"),
        storage_errors(path),
        transaction(connection),
    ):
        connection.executemany("INSERT INTO thing (a) VALUES (?)", [(number,) for number in range(100_000)])
    assert connection.execute("SELECT a FROM thing").fetchall() == [(1,)]
    connection.close()


def test_says_that_the_file_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    connection = open_part(path)
    with transaction(connection):
        connection.executemany("INSERT INTO thing (a) VALUES (?)", [(number,) for number in range(50_000)])
    connection.close()
    content = bytearray(path.read_bytes())
    content[4096 * 4 : 4096 * 20] = b"\xff" * (4096 * 16)
    path.write_bytes(content)
    connection = open_part(path)
    with pytest.raises(StorageError, match="is damaged"), storage_errors(path):
        connection.execute("SELECT sum(a) FROM thing").fetchall()
    connection.close()


def test_a_mistake_in_a_statement_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    connection = open_part(tmp_path / "shoal.db")
    with pytest.raises(sqlite3.ProgrammingError), storage_errors(tmp_path / "shoal.db"):
        connection.execute("INSERT INTO thing (a) VALUES (?)", (object(),))
    connection.close()


def test_inserts_batches_of_every_size_with_few_statements() -> None:
    statements: list[str] = []
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE pair (left INTEGER PRIMARY KEY, right TEXT)")
        database.set_trace_callback(statements.append)
        rows = [(number, f"row {number}") for number in range(300)]
        insert_rows(database, "INSERT INTO pair (left, right)", rows)
        insert_rows(
            database, "INSERT INTO pair (left, right)", [(0, "new")], " ON CONFLICT DO UPDATE SET right = 'kept'"
        )
        inserted = [statement for statement in statements if statement.startswith("INSERT")]
        stored = dict(database.execute("SELECT left, right FROM pair"))
    assert len(inserted) == 6  # 128, 128, 32, 8 and 4 rows, then one
    assert stored == {**dict(rows), 0: "kept"}
