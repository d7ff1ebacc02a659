"""The API keeps what its own OpenAPI document says: schemathesis asks it, always in the same way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Folder
from serving import serving

from shoal.testing.sites.site_process import SiteProcess

pytestmark = pytest.mark.full

PRODUCTS = 10
SECONDS = 240.0
# What a schema cannot say is refused with 422: a spider that is not there, a body that names two things at once.
NOT_CHECKED = "positive_data_acceptance"


# Eight seconds of CPU beside the server's: every operation is asked in ways that no written test would think of.
def test_answers_as_the_document_says(folder: Folder, site: SiteProcess) -> None:
    folder.run("run", folder.spider(site.url), "--max-pages", "20")
    with serving(folder) as server:
        document = server.get("/openapi.json").json
        # A stream has no end.
        del document["paths"]["/api/v1/events"]
        for path in document["paths"].values():
            for method, operation in path.items():
                for parameter in (one for one in operation["parameters"] if one["name"] == "crawl"):
                    # The other operations need the crawl: another one is deleted.
                    parameter["schema"] = {"enum": ["books-9"] if method == "delete" else ["books-1", "books-2"]}
        (folder.path / "openapi.json").write_text(json.dumps(document))
        command = [
            *(str(Path(sys.executable).with_name("schemathesis")), "run", "openapi.json"),
            *("--url", f"http://127.0.0.1:{server.port}"),
            *("--exclude-checks", NOT_CHECKED),
            *("--phases", "examples,coverage,fuzzing"),
            *("--max-examples", "5"),
            *("--generation-deterministic", "--no-color"),
        ]
        ran = subprocess.run(command, cwd=folder.path, capture_output=True, text=True, timeout=SECONDS)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    operations = sum(len(path) for path in document["paths"].values())
    assert f"Tested: {operations}" in ran.stdout, ran.stdout[-2000:]
