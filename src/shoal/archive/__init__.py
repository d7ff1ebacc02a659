"""The seam for raw pages: `open_archive` picks the folder or bucket by URL."""

from __future__ import annotations

from shoal.archive.base import Archive
from shoal.errors import UsageError
from shoal.version import install_command


async def open_archive(url: str, *, create: bool = False) -> Archive:
    """Open the archive in a folder, or in object storage: `s3://bucket/prefix`, `gs://…`, `az://container/prefix`.
    `create` makes an archive that does not exist yet."""
    try:
        from shoal.archive.objects import ObjectArchive
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise UsageError(f"an archive needs the obstore library: {install_command('archive')}") from None

    return await ObjectArchive.open(url, create=create)
