"""The event loop of every command: uvloop if it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from shoal.errors import ShoalError
from shoal.fetch.descriptors import raise_limit
from shoal.worker.machine import collect_rarely, keep_freed_memory, take_small_pages

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end and return the result."""
    raise_limit()
    keep_freed_memory()
    take_small_pages()
    collect_rarely()
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        try:
            return runner.run(main)
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        except SystemExit as end:
            # Handlers catch it themselves; this is another task that the spider started.
            raise ShoalError(f"a task that the spider started called sys.exit({end.code!r}): return instead") from end


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.new_event_loop()
    return new_event_loop()
