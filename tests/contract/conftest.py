"""What `make test` runs of a contract that several backends keep in nearly the same way."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """The tests of a class with `in_make_test`, a collection of names, are `full` except for these."""
    names = getattr(getattr(item, "cls", None), "in_make_test", None)
    if names is not None and isinstance(item, pytest.Function) and item.originalname not in names:
        item.add_marker(pytest.mark.full)
