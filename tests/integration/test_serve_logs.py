"""What `shoal serve` logs: objects when asked, whoever writes them, and who changed what, without secrets."""

from __future__ import annotations

import json
from typing import Any

from command_line import Folder
from serving import Serving, serving

from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 3
TOKEN = "a-token-of-forty-characters-or-so-4711x"
READER = "a-reader-token-of-forty-characters-4711"


def ended(server: Serving) -> tuple[int, str]:
    """Its return code, and all that it wrote to standard error."""
    code = server.stop()
    assert server.process.stderr is not None
    return code, server.process.stderr.read()


def events(text: str) -> list[dict[str, Any]]:
    """Every line must be an object with the fields of all lines."""
    found = [json.loads(line) for line in text.splitlines()]
    assert all(line.keys() >= {"time", "level", "event"} for line in found)
    return found


def told(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line.get(name) for name in ("event", "action", "role", "crawl", "host", "status"))


def test_changes_are_told_with_role_action_and_crawl(folder: Folder, site: SiteProcess) -> None:
    folder.run("run", folder.spider(site.url), "--set", "max_pages=1")
    environ = {"SHOAL_READER_TOKEN": READER}
    with serving(folder, "--log-format", "json", token=TOKEN, environ=environ) as server:
        assert server.get("/crawls").status == 200
        assert server.ask("PUT", "/crawls/books-1/hosts/a.test", body={"rate": "2/s"}).status == 200
        assert server.post("/crawls/books-1/pause").status == 409
        assert server.post("/crawls/books-1/pause", headers={"Authorization": f"Bearer {READER}"}).status == 403
        assert server.post("/crawls/books-1/pause", headers={"Authorization": "Bearer wrong-secret"}).status == 401
        assert server.post("/session", {"token": TOKEN}, headers={"Authorization": None}).status == 201
        assert server.ask("DELETE", "/crawls/books-1").status == 204
        code, text = ended(server)
    assert code == 0
    found = events(text)
    pause = "POST /api/v1/crawls/books-1/pause"
    assert [told(line) for line in found if line["event"].startswith("change ")] == [
        ("change made", "change_host", "admin", "books-1", "a.test", None),
        ("change refused", "pause_crawl", "admin", "books-1", None, 409),
        ("change refused", pause, None, None, None, 403),
        ("change refused", pause, None, None, None, 401),
        ("change made", "sign_in", "reader", None, None, None),
        ("change made", "delete_crawl", "admin", "books-1", None, None),
    ]
    assert {line["client"] for line in found if line["event"].startswith("change ")} == {"127.0.0.1"}
    for secret in (TOKEN, READER, "wrong-secret"):
        assert secret not in text


def test_a_spider_that_is_started_is_told_and_begins(folder: Folder, site: SiteProcess) -> None:
    (folder.path / "spiders").mkdir()
    (folder.path / "spiders" / folder.spider(site.url)).write_text((folder.path / "books.py").read_text())
    with serving(folder, "--log-format", "json", "--spiders", "spiders") as server:
        assert server.post("/crawls", {"spider": "books.py", "settings": {"max_pages": 1}}).status == 201
        _, text = ended(server)
    assert ("change made", "start_crawl", "admin", "books-1", None, None) in map(told, events(text))


def test_without_options_a_change_is_not_told_and_with_v_it_is_a_line(folder: Folder, site: SiteProcess) -> None:
    folder.run("run", folder.spider(site.url), "--set", "max_pages=1")
    with serving(folder) as server:
        assert server.ask("PUT", "/crawls/books-1/hosts/a.test", body={"rate": "2/s"}).status == 200
        assert ended(server) == (0, "")
    with serving(folder, "-v") as server:
        assert server.ask("PUT", "/crawls/books-1/hosts/a.test", body={"rate": "2/s"}).status == 200
        _, text = ended(server)
    assert "change made" in text
    assert "action=change_host role=admin" in text


def test_an_error_at_the_start_is_an_object_too(folder: Folder) -> None:
    arguments = ("serve", "--port", "0", "--log-format", "json", "--spiders", "nowhere")
    (line,) = events(folder.run(*arguments, code=2).stderr)
    assert (line["level"], line["event"], "nowhere" in line["message"]) == ("error", "message", True)
