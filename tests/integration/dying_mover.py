"""A process that moves old weeks of the log and is killed before, during or after it has written a file: with SIGKILL,
or by the kernel at the first byte that is too many.

python dying_mover.py STORE ARCHIVE before|during|after"""

from __future__ import annotations

import asyncio
import resource
import signal
import sys

from shoal.archive import open_archive
from shoal.results.log_files import write_part
from shoal.store import open_store
from shoal.store.base import LogPart
from shoal.testing.killing import die

OCTETS = 1000


async def move(url: str, archive: str, when: str) -> None:
    store, files = await open_store(url), await open_archive(archive, create=True)

    async def put(part: LogPart) -> None:
        if when == "before":
            die()
        if when == "during":
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (OCTETS, OCTETS))
        await write_part(files, part)
        die()

    async for _ in store.log_weeks.move(retention=86_400.0, archive=archive, put=put):
        pass


if __name__ == "__main__":
    asyncio.run(move(*sys.argv[1:]))
