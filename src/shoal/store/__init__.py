"""Items and the fetch log: `open_store` picks the backend by URL."""

from __future__ import annotations

from pathlib import Path

from shoal.backends import backend_of, load, schemes_of
from shoal.errors import StorageError, UsageError
from shoal.store.base import Store
from shoal.text.secrets import masked

STORE_CONNECTIONS = 2


async def open_store(url: str, *, connections: int = STORE_CONNECTIONS, create: bool = True) -> Store:
    """Open `sqlite:///results.db` (four slashes for an absolute path), a plain path that ends in .db, `files:DIR` or
    `files:///absolute/dir`, or `postgresql://user@host/database` with at most `connections` connections.

    create: False refuses a missing file or folder, so that a reader does not leave an empty store behind."""
    scheme, separator, rest = url.partition(":")
    path = rest.removeprefix("//")
    match scheme if separator else "":
        case "sqlite" if rest.startswith("///") and len(rest) > 3:
            return await _open_sqlite(Path(rest[3:]), create=create)
        case "files" if rest and (path.startswith("/") or path == rest) and path != "/":
            return await _open_files(Path(path), create=create)
        case name if name in schemes_of("store", "PostgreSQL") and rest.startswith("//"):
            store: Store = await load(backend_of("store", scheme), scheme=name).open(url, connections=connections)
            return store
        case _ if "://" not in url and url.endswith(".db"):
            return await _open_sqlite(Path(url), create=create)
        case _:
            raise UsageError(
                f"unknown store {masked(url)!r}: give a path that ends in .db, sqlite:///PATH, files:DIR or postgresql://…"
            )


async def _open_sqlite(path: Path, *, create: bool = True) -> Store:
    from shoal.store.sqlite.store import SqliteStore

    return await SqliteStore.open(path, create=create)


async def _open_files(folder: Path, *, create: bool) -> Store:
    from shoal.store.files.store import FilesStore

    if not create and not folder.is_dir():  # noqa: ASYNC240 -- a local folder
        raise StorageError(f"{folder} is gone: put it back")

    return await FilesStore.open(folder, open_index=_open_sqlite)
