"""Passwords in files: a fleet over a real Redis finds them, and the output of commands does not show them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from command_line import SECONDS, Folder

from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 5
PASSWORD = "s3cr3t/of@redis"


@pytest.fixture
def server(folder: Folder) -> Iterator[RedisServer]:
    running = RedisServer(folder.path / "redis").start()
    running.call("CONFIG", "SET", "requirepass", PASSWORD)
    yield running
    running.kill()


def run(folder: Folder, *arguments: str, **variables: str) -> tuple[int, str]:
    with folder.start(*arguments, env={**os.environ, **variables}) as process:
        out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out + err


def test_a_run_and_its_workers_reach_a_server_whose_password_lies_in_a_file(
    folder: Folder, server: RedisServer, site: SiteProcess
) -> None:
    (folder.path / "password").write_text(f"{PASSWORD}\n")
    named = {"SHOAL_FRONTIER": server.url, "SHOAL_FRONTIER_PASSWORD_FILE": "password"}
    code, text = run(folder, "run", folder.spider(site.url), "--workers", "2", "--store", "items.db", **named)
    assert code == 0, text
    code, status = run(folder, "status", "books-1", **named)
    assert (code, "finished" in status) == (0, True), status
    assert PASSWORD not in text + status


def test_a_file_that_is_missing_is_named_in_one_line(folder: Folder) -> None:
    code, text = run(folder, "status", SHOAL_FRONTIER_FILE="nowhere")
    assert (code, text.count("\n")) == (2, 1)
    assert "nowhere of SHOAL_FRONTIER_FILE cannot be read" in text
