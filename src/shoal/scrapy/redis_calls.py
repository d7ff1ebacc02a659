"""Redis calls from the reactor's thread, repeated while Redis is unreachable."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from shoal.text.errors import line_of

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 5.0

T = TypeVar("T")


async def until_answered(step: Callable[[], T], *, say: Callable[[str], None], patience: float = float("inf")) -> T:
    """The result of a Redis call, made in another thread. An error is reported and the call repeated for `patience`
    seconds; an error that waiting does not help, such as a key of the wrong type, is raised at once."""
    from redis.exceptions import RedisError

    began, pause, has_said = time.monotonic(), FIRST_PAUSE_SECONDS, False
    while True:
        try:
            return await maybe_deferred_to_future(deferToThread(step))
        except RedisError as error:
            if _is_wrong(error) or time.monotonic() - began >= patience:
                raise
            if not has_said:
                has_said = True
                say(f"{line_of(error)}; waiting")
        await sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def sleep(seconds: float) -> None:
    """Sleep without blocking the reactor."""
    from twisted.internet import reactor

    await maybe_deferred_to_future(deferLater(reactor, seconds))


def _is_wrong(error: Exception) -> bool:
    """Whether waiting does not help."""
    return any(word in str(error) for word in ("SHOALTYPE", "WRONGTYPE"))
