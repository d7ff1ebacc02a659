from __future__ import annotations

from pathlib import Path

import pytest
from scrapy_project import Project
from scrapy_versions import ScrapyVersion

from started_proxies import start_proxy  # noqa: F401 -- a fixture


@pytest.fixture
def project(tmp_path: Path, request: pytest.FixtureRequest) -> Project:
    """A folder for a spider. The marks of scrapy_versions repeat a test with other releases of Scrapy."""
    return Project(tmp_path, getattr(request, "param", ScrapyVersion()))
