"""A site of files that change, which counts its answers: unchanged pages are 304 to those who know their date."""

from __future__ import annotations

import contextlib
import http.server
import os
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any


class Files(http.server.SimpleHTTPRequestHandler):
    """Files of a folder with their Last-Modified, which answers 304 to those who know them."""

    def __init__(self, *arguments: Any, site: Site, **options: Any) -> None:
        self._site = site
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        if self._site.answers.total() >= self._site.most:
            self._site.is_free.wait()
        super().do_GET()

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        self._site.answers[self.path, int(code)] += 1

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 -- the name is the base class's
        pass


class Site:
    """A folder that is served. After about `most` answers requests wait until it `is_free`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._changes = 0
        self.answers: Counter[tuple[str, int]] = Counter()
        self.most = sys.maxsize
        self.is_free = threading.Event()

    def write(self, name: str, body: str) -> None:
        path = self._folder / name
        path.write_text(body)
        # Last-Modified has whole seconds: each change gets one of its own.
        self._changes += 1
        moment = time.time() - 10_000 + self._changes * 10
        os.utime(path, (moment, moment))

    def remove(self, name: str) -> None:
        (self._folder / name).unlink()

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        handler = partial(Files, directory=str(self._folder), site=self)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            self.is_free.set()
            server.shutdown()
            server.server_close()
            thread.join()


def stored(folder: Path) -> dict[str, tuple[bool, int]]:
    """The items in `results.db` by key: whether they are gone, and their version."""
    with contextlib.closing(sqlite3.connect(folder / "results.db")) as db:
        return {
            key: (gone is not None, version)
            for key, gone, version in db.execute("SELECT key, gone_at, version FROM items")
        }
