"""Lines that say what takes its time while it does: environments to install, sites to build, frontiers to grow."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

STILL_SECONDS = 10.0


@contextlib.contextmanager
def telling(what: str, *, every: float = STILL_SECONDS) -> Iterator[None]:
    """Say what begins, from time to time that it still goes on, and how long it took."""
    print(f"{what} ...", flush=True)
    began, over = time.perf_counter(), threading.Event()

    def tell() -> None:
        while not over.wait(every):
            print(f"{what}: {time.perf_counter() - began:.0f} s so far", flush=True)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    print(f"{what}: done after {time.perf_counter() - began:.0f} s", flush=True)
