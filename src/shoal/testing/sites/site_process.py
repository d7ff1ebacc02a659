"""The test site as a process, for crash tests and the demo."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.testing.sites.loopback import Hit, read_log

START_SECONDS = 20.0


class SiteProcess(NamedTuple):
    """A process with a site. `hits()` reads its log so far."""

    url: str
    urls: list[str]
    process: subprocess.Popen[str]
    log: Path

    def hits(self) -> list[Hit]:
        return read_log(self.log)


@contextlib.contextmanager
def site_process(*arguments: str, log: Path, prefix: Sequence[str] = ()) -> Iterator[SiteProcess]:
    """Run the site as a process until the block ends; the prefix is a command that runs it elsewhere."""
    command = [*prefix, sys.executable, "-m", "shoal.testing.sites.site", "--log", str(log), *arguments]
    # A session of its own: Ctrl-C is for the crawl, which still finishes its pages.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            is_ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
            line = process.stdout.readline() if is_ready else ""
            if not line:
                raise RuntimeError("the site did not start: run it by hand with `python -m shoal.testing.sites.site`")
            ready = json.loads(line)
            yield SiteProcess(url=ready["url"], urls=ready["urls"], process=process, log=log)
        finally:
            process.kill()
