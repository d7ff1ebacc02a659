"""What this machine lacks costs a page a moment: for descriptors no longer than they lack."""

from __future__ import annotations

import errno
import os
import random

import pytest

from shoal.exits.troubles import LOOKS, Shortage, Troubles, wait_out
from shoal.testing.few_files import few_files


class Pauses(random.Random):
    """Counts the pauses, each of no length."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def uniform(self, _least: float, _most: float) -> float:
        self.count += 1
        return 0.0


async def pauses_after(number: int) -> int:
    pauses, said = Pauses(), list[str]()
    await wait_out(Shortage(os.strerror(number)), troubles=Troubles(said.append), rng=pauses)
    assert len(said) == 1
    return pauses.count


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
async def test_a_page_waits_until_a_descriptor_is_free_and_not_for_ever(number: int) -> None:
    assert await pauses_after(number) == 1
    with few_files():
        assert await pauses_after(number) == LOOKS


@pytest.mark.parametrize("number", [errno.EADDRNOTAVAIL, errno.ENOBUFS])
async def test_for_anything_else_there_is_nothing_to_look_for(number: int) -> None:
    assert await pauses_after(number) == 1
