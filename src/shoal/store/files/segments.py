"""Append-only JSON Lines in a folder: groups of files, each group written by one process, in whole batches.

Lines have no version: unknown fields are ignored, so new fields need a default and old fields keep their meaning."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from shoal.errors import StorageBroken, StorageError
from shoal.store.base import FetchRow, ItemRow, ItemRule, ScrapedPage

SEGMENT_BYTES = 64 * 1024 * 1024
ITEMS, FETCHES, PAGES = "items", "fetches", "pages"

_Line = TypeVar("_Line", bound="ItemLine | FetchLine | PageLine")


class ItemLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One item row. `left` counts the rows of its batch that follow: a torn batch has no row with `left` 0."""

    spider: str
    key: str
    url: str
    crawl: str
    token: int
    at: float
    data: msgspec.Raw
    rule: ItemRule = ItemRule()
    written: float
    left: int


class FetchLine(FetchRow, frozen=True, kw_only=True, omit_defaults=True):
    """One log line. With `deletes` it is an order to delete the lines of its crawl."""

    deletes: bool = False
    written: float
    left: int


class GoneOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The arguments of one `mark_gone`, without the spider."""

    at: float
    missing_before: float | None = None
    unseen_since: float | None = None


class PageLine(ScrapedPage, frozen=True, kw_only=True, omit_defaults=True):
    """One scraped page. With `gone` it is an order to mark items of its spider as gone, with `deletes` an order to
    delete the items that this crawl wrote last."""

    gone: GoneOrder | None = None
    deletes: str = ""
    written: float
    left: int


def item_lines(rows: Sequence[ItemRow], *, rule: ItemRule, now: float) -> bytes:
    """The rows as lines of one batch."""
    lines = [
        ItemLine(
            spider=row.spider,
            key=row.key,
            url=row.url,
            crawl=row.crawl,
            token=row.token,
            at=row.at,
            data=msgspec.Raw(_on_one_line(row.data)),
            rule=rule,
            written=now,
            left=left,
        )
        for left, row in zip(range(len(rows) - 1, -1, -1), rows, strict=True)
    ]
    return msgspec.json.Encoder().encode_lines(lines)


def fetch_lines(rows: Sequence[FetchRow], *, now: float, deletes: bool = False) -> bytes:
    """The log lines as lines of one batch."""
    lines = [
        FetchLine(**msgspec.structs.asdict(row), deletes=deletes, written=now, left=left)
        for left, row in zip(range(len(rows) - 1, -1, -1), rows, strict=True)
    ]
    return msgspec.json.Encoder().encode_lines(lines)


def page_lines(pages: Sequence[ScrapedPage], *, now: float, gone: GoneOrder | None = None, deletes: str = "") -> bytes:
    """The pages as lines of one batch."""
    lines = [
        PageLine(**msgspec.structs.asdict(page), gone=gone, deletes=deletes, written=now, left=left)
        for left, page in zip(range(len(pages) - 1, -1, -1), pages, strict=True)
    ]
    return msgspec.json.Encoder().encode_lines(lines)


def batches(path: Path, kind: type[_Line], *, start: int) -> Iterator[tuple[int, list[_Line]]]:
    """The whole batches after offset `start`, each with the offset of its end. A torn tail is ignored."""
    decoder = msgspec.json.Decoder(kind)
    batch: list[_Line] = []
    end = start
    with path.open("rb") as file:
        file.seek(start)
        for text in file:
            if not text.endswith(b"\n"):
                return
            try:
                line = decoder.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise StorageError(f"{path} is damaged near byte {end}: restore a copy, or move it away") from None
            end += len(text)
            batch.append(line)
            if line.left == 0:
                yield end, batch
                batch = []


def ends_line(path: Path, offset: int) -> bool:
    """Whether a line ends at this offset. It does not if a batch was read whose failed write was then truncated."""
    if offset == 0:
        return True
    with path.open("rb") as file:
        file.seek(offset - 1)
        return file.read(1) == b"\n"


def segments(folder: Path, which: str) -> list[Path]:
    """The files of one kind, oldest first."""
    return sorted(folder.glob(f"{which}-*.jsonl"))


class Segment:
    """Files for items and log lines, and a third for pages once there are any. While it is open, no other process
    appends to it."""

    def __init__(self, items: BinaryIO, fetches: BinaryIO) -> None:
        self._items = items
        self._fetches = fetches
        self._pages: BinaryIO | None = None

    @classmethod
    def take(cls, folder: Path, *, now: float) -> Segment:
        """A segment that another process left unfilled, its torn tail truncated; else a new one, named by the time."""
        for path in segments(folder, ITEMS):
            if path.stat().st_size < SEGMENT_BYTES and (segment := cls._open(path)):
                return segment
        while True:
            name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now))}-{secrets.token_hex(4)}"
            if segment := cls._open(folder / f"{ITEMS}-{name}.jsonl"):
                _sync_folder(folder)
                return segment

    @classmethod
    def _open(cls, path: Path) -> Segment | None:
        # Absolute: a spider may change the working directory.
        path = path.absolute()
        with contextlib.ExitStack() as opened:
            items = opened.enter_context(path.open("a+b", buffering=0))
            try:
                fcntl.flock(items, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            fetches = opened.enter_context(partner(path).open("a+b", buffering=0))
            _cut_torn_tail(path, ItemLine, items)
            _cut_torn_tail(partner(path), FetchLine, fetches)
            segment = cls(items, fetches)
            if partner(path, PAGES).exists():
                opened.enter_context(segment._pages_file())
            opened.pop_all()
            return segment

    def _pages_file(self) -> BinaryIO:
        if self._pages is None:
            path = partner(Path(self._items.name), PAGES)
            is_new = not path.exists()
            self._pages = path.open("a+b", buffering=0)
            _cut_torn_tail(path, PageLine, self._pages)
            if is_new:
                _sync_folder(path.parent)
        return self._pages

    @property
    def is_full(self) -> bool:
        files = (self._items, self._fetches, self._pages)
        return max(os.fstat(file.fileno()).st_size for file in files if file is not None) >= SEGMENT_BYTES

    def append(self, items: bytes, fetches: bytes, pages: bytes = b"") -> None:
        """Append the texts: all are on disk when this returns, none when it raises."""
        parts = [(file, text) for file, text in ((self._items, items), (self._fetches, fetches)) if text]
        if pages:
            parts.append((self._pages_file(), pages))
        for file, _ in parts:
            _check_in_place(file)
        sizes = [(file, os.fstat(file.fileno()).st_size) for file, _ in parts]
        try:
            for file, text in parts:
                _write_all(file, text)
            for file, _ in parts:
                os.fdatasync(file.fileno())
        except OSError as error:
            for file, size in sizes:
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), size)
            why = error.strerror or str(error)
            raise StorageError(
                f"{parts[0][0].name}: {why}; nothing that was saved is lost, fix that and run again"
            ) from error

    def close(self) -> None:
        if self._pages is not None:
            self._pages.close()
        self._fetches.close()
        self._items.close()


def partner(items: Path, kind: str = FETCHES) -> Path:
    """The file of log lines, or of another kind, that belongs to this file of items."""
    return items.with_name(kind + items.name.removeprefix(ITEMS))


def drop_old_log(folder: Path, *, before: float) -> list[str]:
    """Delete log files that no process has open and that are unchanged since `before`; returns their names."""
    dropped = []
    for path in segments(folder, ITEMS):
        log = partner(path)
        with path.open("rb") as items, contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(items, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if log.stat().st_mtime < before and log.stat().st_size:
                log.unlink()
                dropped.append(log.name)
    return dropped


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock on this file and hold it."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _check_in_place(file: BinaryIO) -> None:
    """Refuse to write to a deleted file: its content would be lost."""
    try:
        is_same = os.path.samestat(os.stat(file.name), os.fstat(file.fileno()))
    except (FileNotFoundError, NotADirectoryError):
        is_same = False
    if not is_same:
        raise StorageBroken(
            f"{file.name} was deleted or replaced while shoal wrote to it: its items are lost; restore a copy of its"
            " folder, or start afresh with another"
        )


def _write_all(file: BinaryIO, text: bytes) -> None:
    left = memoryview(text)
    while left:
        left = left[os.write(file.fileno(), left) :]


def _cut_torn_tail(path: Path, kind: type[ItemLine | FetchLine | PageLine], file: BinaryIO) -> None:
    end = max((end for end, _ in batches(path, kind, start=0)), default=0)
    if end < os.fstat(file.fileno()).st_size:
        os.ftruncate(file.fileno(), end)


def _on_one_line(data: bytes) -> bytes:
    return msgspec.json.format(data, indent=-1) if b"\n" in data or b"\r" in data else data


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
