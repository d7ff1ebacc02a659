"""Requests that leave from an address of this machine: routes of their own for each, as a client has one address."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from shoal.fetch.base import Fault
from shoal.fetch.exit_config import ExitConfig
from shoal.fetch.faults import lacks_a_port
from shoal.fetch.own_addresses import has_address
from shoal.fetch.proxies import fault_of
from shoal.fetch.routes import Routes

# With more addresses than this, used one after the other, every request would build a client.
MAX_ADDRESSES: Final = 256


class AddressRoutes:
    """The routes from each address in use. They share the look-ups, and the open connections that a worker may keep."""

    def __init__(self, routes: Routes, *, addresses: int) -> None:
        self._routes = routes
        self._share = min(addresses, MAX_ADDRESSES)
        self._by_address: OrderedDict[str, Routes] = OrderedDict()

    def of(self, address: str) -> Routes:
        """The routes from this address. Those that were not used for longest go on working, but are not kept."""
        found = self._by_address.get(address)
        if found is None:
            if len(self._by_address) >= MAX_ADDRESSES:
                self._by_address.popitem(last=False)
            found = self._by_address[address] = self._routes.leaving_from(address, share=self._share)
        self._by_address.move_to_end(address)
        return found

    def relieve(self) -> None:
        """Drop idle connections, as `Routes.relieve` does."""
        for routes in self._by_address.values():
            routes.relieve()

    async def close(self) -> None:
        """Close connections."""
        for routes in self._by_address.values():
            await routes.close()
        self._by_address.clear()


def address_fault(config: ExitConfig, error: Exception) -> Fault | None:
    """The fault of an address that this machine has lost; None: something else failed."""
    if lacks_a_port(error) and not has_address(config.address):
        return fault_of(config, f"this machine does not have the address {config.address} any more", is_certain=True)
    return None
