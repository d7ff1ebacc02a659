"""Exports items to a file: JSON Lines, a JSON array, CSV or Parquet. The file is written whole or not at all, in flat
memory."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Protocol

import msgspec

from shoal.errors import StorageBroken, StorageError, UsageError
from shoal.store.base import ItemFilter, Store, StoredItem
from shoal.version import install_command

MAX_DEPTH = 8  # lists in lists; deeper ones are JSON text

# Bits: the type of a column follows from the kinds of all its values.
_BOOL, _INT, _LONG, _FLOAT, _TEXT, _LIST, _OTHER = 1, 2, 4, 8, 16, 32, 64
_BY_TYPE: dict[type, int] = {type(None): 0, str: _TEXT, bool: _BOOL, float: _FLOAT}
STDOUT = "-"
GONE = "_gone_at"
SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".parquet")
MAX_COLUMNS = 10_000
BATCH_ROWS = 1000
BATCH_BYTES = 4 * 1024 * 1024
GROUP_ROWS = 10_000
GROUP_BYTES = 32 * 1024 * 1024
ANYBODY_WRITES = 0o222
SHOW_SECONDS = 0.1
# Spreadsheets read a cell that begins with one of these, full-width forms included, as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
# In UTF-8: DEL, C1 controls, line separators, directions.
_CONTROLS = re.compile(b"\x7f|\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]|\xe2\x81[\xa6-\xa9]")
# Also separators other than a comma: a spreadsheet that uses them would find a formula after one.
_TO_QUOTE = re.compile(r'[",;\t\r\n]')


class ColumnKind:
    """The kinds of all values of one column so far; for lists also those of their elements."""

    __slots__ = ("_bits", "_depth", "_element")

    def __init__(self, depth: int = 0) -> None:
        self._bits = 0
        self._depth = depth
        self._element: ColumnKind | None = None

    def add(self, value: Any) -> None:
        """Add a value, as decoded from JSON."""
        bits = _BY_TYPE.get(type(value))
        if bits is not None:
            self._bits |= bits
        elif isinstance(value, int):
            self._bits |= _kind_of_int(value)
        elif isinstance(value, list) and self._depth < MAX_DEPTH:
            self._bits |= _LIST
            if self._element is None:
                self._element = ColumnKind(self._depth + 1)
            self._element._add_all(value)
        else:
            self._bits |= _OTHER

    def arrow_type(self, arrow: Any) -> Any:
        """The narrowest Parquet type that holds every value; None: only JSON text does."""
        bits = self._bits
        if bits == _LIST and self._element is not None:
            element = self._element.arrow_type(arrow)
            return None if element is None else arrow.list_(element)
        if bits in (0, _TEXT):
            return arrow.string()
        if bits == _BOOL:
            return arrow.bool_()
        if not bits & ~(_INT | _LONG):
            return arrow.int64()
        # Whole numbers beyond 2**53 would lose digits as floats.
        return arrow.float64() if not bits & ~(_INT | _FLOAT) else None

    def _add_all(self, values: list[Any]) -> None:
        # By type, since lists may be long: most types have one kind.
        for kind in set(map(type, values)):
            bits = _BY_TYPE.get(kind)
            if bits is not None:
                self._bits |= bits
            else:
                for value in values:
                    if type(value) is kind:
                        self.add(value)


def _kind_of_int(value: int) -> int:
    if -(2**53) <= value <= 2**53:
        return _INT
    return _LONG if -(2**63) <= value < 2**63 else _OTHER


Show = Callable[[int, int], None]
_Fields = dict[str, Any]
_Columns = dict[str, Callable[[StoredItem], Any]]

# Columns of shoal beside the item's own fields, which win if they have these names.
_OWN_COLUMNS: _Columns = {"_key": lambda item: item.key, "_url": lambda item: item.url}
_OF_VERSIONS: _Columns = {
    "_version": lambda item: item.version,
    "_changed_at": lambda item: _iso(item.changed_at),
}


def check_target(path: str | os.PathLike[str]) -> None:
    """UsageError if `export` could not write the file: known before a long crawl instead of after it."""
    if os.fspath(path) == STDOUT:
        return
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise UsageError(f"cannot tell the format of {path}: end it in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if target.suffix.lower() == ".parquet":
        _pyarrow()
    try:
        _check_place(target)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def check_targets(paths: Sequence[str]) -> None:
    """UsageError if `export` could not write one of the files, or one is named twice."""
    for index, path in enumerate(paths):
        check_target(path)
        if any(_is_same(path, other) for other in paths[:index]):
            raise UsageError(f"-o {path} is given twice: name each file once")


def _is_same(path: str, other: str) -> bool:
    if STDOUT in (path, other):
        return path == other
    return Path(path).resolve() == Path(other).resolve()


def _check_place(path: Path) -> None:
    """UsageError if no file can be created in the folder of the path: creates one to find out."""
    # A symbolic link stays; the file that it points to is replaced.
    target = path.resolve()
    folder = target.parent
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise UsageError(f"cannot write {path}: the folder {folder if path.is_symlink() else path.parent} {what}")
    if target.exists() and not target.is_file():
        raise UsageError(f"cannot write {path}: it is not a file")
    if target.exists() and not (os.access(target, os.W_OK) and target.stat().st_mode & ANYBODY_WRITES):
        raise UsageError(f"cannot write {path}: it is write-protected; choose another name, or chmod u+w it")
    try:
        with TemporaryFile(dir=folder) as probe:
            probe.write(b"\n")
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: the folder {folder} takes no files: {error.strerror or error}"
        ) from None


def harmless(document: bytes) -> bytes:
    """The JSON with control characters escaped: a terminal would act on them."""
    return _CONTROLS.sub(lambda match: b"\\u%04x" % ord(match[0].decode()), document)


class ExportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which items are exported: those that match `which` and have the values of `where`; or all their versions."""

    which: ItemFilter = ItemFilter()
    where: tuple[tuple[str, str], ...] = ()
    versions: bool = False


async def export(
    store: Store,
    path: str | os.PathLike[str],
    *,
    wanted: ExportRequest = ExportRequest(),
    show: Show | None = None,
) -> int:
    """Write the items to `path` in the format of its ending ("-": JSON Lines to stdout); gives how many.

    An existing file stays as it is until the new one is complete and on the disk. `show` is given the number of items
    read so far, and how many of them a table has as rows: that comes after all are read."""
    check_target(path)
    items = _chosen(store, wanted, show)
    if os.fspath(path) == STDOUT:
        return await _copy(items, _JsonLines(sys.stdout.buffer, names=_own_columns(wanted), spelled=harmless), show)
    target = Path(path)
    try:
        with _whole_file(target) as file, TemporaryFile(dir=target.parent) as spool:
            count = await _copy(items, _sink(target.suffix.lower(), file, spool, names=_own_columns(wanted)), show)
            await asyncio.to_thread(_sync, file)
    except OSError as error:
        why = error.strerror or str(error)
        raise StorageError(f"cannot write {path}: {why}; nothing was changed, fix that and export again") from error
    return count


class _Sink(Protocol):
    rows: int
    """Rows of a table that are written so far."""

    def add(self, items: list[StoredItem]) -> None:
        """Add items."""

    def finish(self) -> None:
        """Write the rest."""


class _JsonLines:
    rows = 0

    def __init__(self, file: IO[bytes], *, names: _Columns, spelled: Callable[[bytes], bytes] = bytes) -> None:
        self._file = file
        self._names = names
        self._spelled = spelled
        self._encoder = msgspec.json.Encoder()

    def add(self, items: list[StoredItem]) -> None:
        self._file.write(self._spelled(self._encoder.encode_lines([_fields(item, self._names) for item in items])))

    def finish(self) -> None:
        self._file.flush()


class _JsonArray:
    rows = 0

    def __init__(self, file: IO[bytes], *, names: _Columns) -> None:
        self._file = file
        self._names = names
        self._before = b"[\n"

    def add(self, items: list[StoredItem]) -> None:
        for item in items:
            self._file.write(self._before + msgspec.json.encode(_fields(item, self._names)))
            self._before = b",\n"

    def finish(self) -> None:
        self._file.write(b"[]\n" if self._before == b"[\n" else b"\n]\n")


class _Table:
    """A table of rows and columns. Rows wait in `spool`: all columns are known only after the last row."""

    def __init__(self, file: IO[bytes], *, spool: IO[bytes], is_parquet: bool, names: _Columns) -> None:
        self._file = file
        self._names = names
        self._spool = spool
        self._lay_out = _lay_out_parquet if is_parquet else _lay_out_csv
        self.rows = 0
        self._kinds: dict[str, ColumnKind] = {}

    def add(self, items: list[StoredItem]) -> None:
        kinds = self._kinds
        for item in items:
            fields = _fields(item, self._names)
            for name, value in fields.items():
                kind = kinds.get(name)
                if kind is None:
                    kind = kinds[name] = ColumnKind()
                kind.add(value)
            self._spool.write(msgspec.json.encode(fields) + b"\n")
        if len(kinds) > MAX_COLUMNS:
            raise UsageError(f"the items have more than {MAX_COLUMNS:,} different fields: export them to .jsonl")

    def finish(self) -> None:
        own = [*self._names, *(name for name in (GONE,) if name in self._kinds)]
        names = [name for name in self._kinds if name not in own]
        columns = {name: self._kinds.get(name) or ColumnKind() for name in (*names, *own)}
        self._spool.seek(0)
        self._lay_out(self._file, columns, self._counted(self._spool))

    def _counted(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        for line in lines:
            yield line
            self.rows += 1


def _sink(suffix: str, file: IO[bytes], spool: IO[bytes], *, names: _Columns) -> _Sink:
    match suffix:
        case ".json":
            return _JsonArray(file, names=names)
        case ".csv" | ".parquet":
            return _Table(file, spool=spool, is_parquet=suffix == ".parquet", names=names)
        case _:
            return _JsonLines(file, names=names)


def _own_columns(wanted: ExportRequest) -> _Columns:
    return {**_OWN_COLUMNS, **_OF_VERSIONS} if wanted.versions else _OWN_COLUMNS


async def _chosen(store: Store, wanted: ExportRequest, show: Show | None) -> AsyncIterator[StoredItem]:
    count = 0
    async for item in store.versions(wanted.which) if wanted.versions else store.items(wanted.which):
        if wanted.where and not _has(item, wanted.where):
            continue
        yield item
        count += 1
        if show is not None and count % BATCH_ROWS == 0:
            show(count, 0)


def _has(item: StoredItem, where: Iterable[tuple[str, str]]) -> bool:
    """Whether the fields have these values, as text or in JSON's spelling (5, true, null)."""
    fields = _decoded(item)
    return all(
        name in fields and value in (fields[name], msgspec.json.encode(fields[name]).decode()) for name, value in where
    )


async def _copy(items: AsyncIterator[StoredItem], sink: _Sink, show: Show | None) -> int:
    loop = asyncio.get_running_loop()
    count = 0
    # The end of the block waits for the thread: it must not write to a closed file.
    with ThreadPoolExecutor(1, thread_name_prefix="shoal-export") as thread:
        async for batch in _batches(items):
            await loop.run_in_executor(thread, sink.add, batch)
            count += len(batch)
        finishing = loop.run_in_executor(thread, sink.finish)
        while show is not None and not (await asyncio.wait([finishing], timeout=SHOW_SECONDS))[0]:
            show(count, sink.rows)
        await finishing
    return count


async def _batches(items: AsyncIterator[StoredItem]) -> AsyncIterator[list[StoredItem]]:
    batch: list[StoredItem] = []
    size = 0
    async for item in items:
        batch.append(item)
        size += len(item.data)
        if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    # A symbolic link stays; the file it points to is replaced.
    target = path.resolve()
    part = target.with_name(f".shoal-{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            yield file
        if target.exists():
            shutil.copymode(target, part)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Flush the folder, so that the new name survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _decoded(item: StoredItem) -> Any:
    try:
        return msgspec.json.decode(item.data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StorageBroken(
            f"the item {item.key!r} of {item.crawl} is damaged in the store: delete it there, or restore a copy"
        ) from error


def _fields(item: StoredItem, names: _Columns) -> _Fields:
    """The item's own fields, then its key and URL unless it has fields of these names; of a gone one, since when."""
    decoded = _decoded(item)
    fields: _Fields = decoded if isinstance(decoded, dict) else {"value": decoded}
    for name, value in names.items():
        fields.setdefault(name, value(item))
    if item.gone_at is not None:
        fields.setdefault(GONE, _iso(item.gone_at))
    return fields


def _iso(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).isoformat()


def _lay_out_csv(file: IO[bytes], columns: dict[str, ColumnKind], lines: Iterable[bytes]) -> None:
    file.write(_csv_row(columns))
    for line in lines:
        fields = msgspec.json.decode(line)
        file.write(_csv_row(fields.get(name) for name in columns))


def _csv_row(values: Iterable[Any]) -> bytes:
    return (",".join(_quoted(_cell(value)) for value in values) + "\r\n").encode()


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if _TO_QUOTE.search(cell) else cell


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return msgspec.json.encode(value).decode()
    if value.startswith(_FORMULA) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def _lay_out_parquet(file: IO[bytes], columns: dict[str, ColumnKind], lines: Iterable[bytes]) -> None:
    arrow, parquet = _pyarrow()
    types = {name: kind.arrow_type(arrow) for name, kind in columns.items()}
    schema = arrow.schema([(name, kind or arrow.string()) for name, kind in types.items()])
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in _groups(lines):
            arrays = [
                _parquet_column(arrow, kind, [fields.get(name) for fields in group]) for name, kind in types.items()
            ]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema), row_group_size=GROUP_ROWS)


def _parquet_column(arrow: Any, kind: Any, values: list[Any]) -> Any:
    """The values, as JSON text if no column type holds them all."""
    return arrow.array(map(_as_json, values), arrow.string()) if kind is None else arrow.array(values, kind)


def _groups(lines: Iterable[bytes]) -> Iterator[list[_Fields]]:
    group: list[_Fields] = []
    size = 0
    for line in lines:
        group.append(msgspec.json.decode(line))
        size += len(line)
        if len(group) >= GROUP_ROWS or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _as_json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(f"Parquet files need pyarrow: {install_command('parquet')}") from None
    return pyarrow, pyarrow.parquet
