"""Look-ups of host names by the system: what a lack of descriptors looks like."""

from __future__ import annotations

import pytest

from shoal.fetch.base import Fault, FaultKind
from shoal.fetch.guard import Resolver
from shoal.testing.clock import FakeClock
from shoal.testing.few_files import few_files


@pytest.mark.parametrize("host", ["localhost", "nobody.invalid"])
async def test_a_name_that_no_descriptor_was_left_for_is_a_shortage_and_asked_again(host: str) -> None:
    resolver = Resolver(clock=FakeClock())
    await Resolver(clock=FakeClock()).addresses(host)  # loads what look-ups need
    with few_files():
        found = await resolver.addresses(host)
    assert isinstance(found, Fault)
    assert (found.kind, found.message) == (FaultKind.SHORTAGE, f"{host}: Too many open files")
    again = await resolver.addresses(host)
    assert again != found
    assert not isinstance(again, Fault) or again.kind is FaultKind.DNS
    resolver.close()
