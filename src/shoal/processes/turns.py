"""Whose turn it is to be handled: between a few pages the event loop sends requests and takes answers."""

from __future__ import annotations

import asyncio
from collections import deque

# Handled in one round of the event loop: a few milliseconds. All at once, when hundreds have landed together, would let
# no request start meanwhile: the next answers would come together as well.
PAGES_PER_ROUND = 8
# More pages that wait are a crowd: answers and starts then go first, so that the next pages come spread out. Not
# always: a round of the event loop costs as much as a tenth of a page.
CROWD = 128
PAGES_IN_A_CROWD = 2


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
        waiting = self._waiting
        begun, most = 0, PAGES_IN_A_CROWD if len(waiting) > CROWD else PAGES_PER_ROUND
        while waiting and begun < most:
            turn = waiting.popleft()
            # The page's lease may be lost or released by now.
            if not turn.done():
                turn.set_result(None)
                begun += 1
        self._left = most - begun if begun else PAGES_PER_ROUND
        if begun:
            asyncio.get_running_loop().call_soon(self._begin_round)
