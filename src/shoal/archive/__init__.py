"""Raw pages: `open_archive` opens the folder or bucket at a URL."""

from __future__ import annotations

from shoal.archive.base import Archive
from shoal.backends import backend_of, load


async def open_archive(url: str, *, create: bool = False) -> Archive:
    """Open the archive in a folder, or in object storage: `s3://bucket/prefix`, `gs://…`, `az://container/prefix`.

    create: make an archive that does not exist yet."""
    archive: Archive = await load(backend_of("archive", "file")).open(url, create=create)
    return archive
