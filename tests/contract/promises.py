"""Names of promises, for those who run only some of them."""

from __future__ import annotations


def names_of(*promises: type) -> frozenset[str]:
    """The names of the tests of these classes."""
    return frozenset(name for one in promises for name in vars(one) if name.startswith("test_"))
