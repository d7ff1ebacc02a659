"""Whose turn it is to be handled: between a few pages the event loop sends requests and takes answers."""

from __future__ import annotations

import asyncio
from collections import deque

# Handled in one round of the event loop: a few milliseconds. All at once, when hundreds have landed together, would let
# no request start meanwhile: the next answers would come together as well.
PAGES_PER_ROUND = 8


class Turns:
    """Pages in the order in which they have landed, a few per round of the event loop."""

    def __init__(self) -> None:
        self._left = PAGES_PER_ROUND
        self._waiting: deque[asyncio.Future[None]] = deque()

    def next(self) -> asyncio.Future[None] | None:
        """What a page waits for before it is handled; None: nothing."""
        if self._left == 0:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            return turn
        if self._left == PAGES_PER_ROUND:
            asyncio.get_running_loop().call_soon(self._begin_round)
        self._left -= 1
        return None

    def _begin_round(self) -> None:
        left, waiting = PAGES_PER_ROUND, self._waiting
        while waiting and left:
            turn = waiting.popleft()
            # The page's lease may be lost or released by now.
            if not turn.done():
                turn.set_result(None)
                left -= 1
        self._left = left
        if left < PAGES_PER_ROUND:
            asyncio.get_running_loop().call_soon(self._begin_round)
