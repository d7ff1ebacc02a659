"""What the tests of the command line share: a shop on loopback, and a folder to run commands in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Folder

from shoal.testing.sites.site_process import SiteProcess, site_process


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteProcess]:
    """A shop with as many books as the module's PRODUCTS says."""
    log = tmp_path_factory.mktemp("site") / "hits.jsonl"
    with site_process("--products", str(request.module.PRODUCTS), "--hosts", "127.0.0.1", log=log) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)
