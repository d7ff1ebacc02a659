"""Who may ask `shoal serve` for what: tokens, sessions, hosts, origins, sizes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Folder
from serving import Serving, serving

TOKEN = "a-token-of-some-length"
READER = "another-token-that-reads"


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Without a token. It keeps nothing of one request for the next."""
    with serving(Folder(tmp_path_factory.mktemp("open"))) as running:
        yield running


@pytest.fixture(scope="module")
def among_spiders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Serving]]:
    """A folder, and a server for its spiders, of which none may be started."""
    folder = tmp_path_factory.mktemp("spiders")
    spiders = folder / "spiders"
    (spiders / "sub").mkdir(parents=True)
    (spiders / "folder.py").mkdir()
    for path in (folder / "outside.py", spiders / "sub" / "deep.py"):
        path.write_text("raise SystemExit('it ran')")
    (spiders / "link.py").symlink_to(folder / "outside.py")
    with serving(Folder(folder), "--spiders", "spiders") as running:
        yield folder, running


@pytest.fixture
def server(folder: Folder) -> Iterator[Serving]:
    with serving(folder, token=TOKEN, environ={"SHOAL_READER_TOKEN": READER}) as running:
        yield running


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_needs_a_token_to_listen_beyond_loopback(folder: Folder) -> None:
    line = folder.refusal("serve", "--host", "0.0.0.0", "--port", "0")
    assert "set a token with --token-file or SHOAL_TOKEN" in line


@pytest.mark.parametrize(
    ("text", "why"), [("short", "16 are the least"), ("", "is empty"), ("with a space in it", "spaces")]
)
def test_refuses_tokens_that_are_none(folder: Folder, text: str, why: str) -> None:
    (folder.path / "token").write_text(text)
    assert why in folder.refusal("serve", "--port", "0", "--token-file", "token")


def test_refuses_one_token_for_both_roles(folder: Folder) -> None:
    (folder.path / "token").write_text(TOKEN)
    files = ("--token-file", "token", "--reader-token-file", "token")
    assert "are the same" in folder.refusal("serve", "--port", "0", *files)


def test_without_the_token_nothing_is_told(server: Serving) -> None:
    for method, path in [("GET", "/status"), ("GET", "/crawls"), ("GET", "/events"), ("POST", "/crawls/a-1/pause")]:
        answer = server.ask(method, path, headers={"Authorization": None})
        assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Bearer realm="shoal"')
    assert server.get("/metrics", prefix="", headers={"Authorization": None}).status == 401
    assert server.get("/status").json["role"] == "admin"
    assert server.get("/status", headers={"Authorization": f"Basic {TOKEN}"}).status == 401


def test_probes_need_no_token(server: Serving) -> None:
    assert server.get("/healthz", prefix="", headers={"Authorization": None}).status == 200
    assert server.get("/readyz", prefix="", headers={"Authorization": None}).status == 200


def test_the_reader_token_only_looks(server: Serving) -> None:
    assert server.get("/status", headers=bearer(READER)).json["role"] == "reader"
    for method, path in [("POST", "/crawls/a-1/pause"), ("DELETE", "/crawls/a-1"), ("PUT", "/crawls/a-1/hosts/b.test")]:
        answer = server.ask(method, path, headers=bearer(READER))
        assert (answer.status, "may look, not change" in answer.error) == (403, True)


def test_a_browser_signs_in_and_out(server: Serving) -> None:
    answer = server.post("/session", {"token": READER}, headers={"Authorization": None})
    assert (answer.status, answer.json) == (201, {"role": "reader"})
    cookie = answer.headers["set-cookie"]
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip().lower() for part in cookie.split(";")}
    assert "secure" not in cookie.lower()
    session = {"Authorization": None, "Cookie": cookie.partition(";")[0]}
    assert server.get("/status", headers=session).json["role"] == "reader"
    assert server.ask("DELETE", "/session", headers=session).status == 204
    assert server.get("/status", headers=session).status == 401


def test_the_cookie_is_secure_behind_a_proxy_with_tls(server: Serving) -> None:
    headers = {"Authorization": None, "X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.9"}
    assert "secure" in server.post("/session", {"token": TOKEN}, headers=headers).headers["set-cookie"].lower()


def test_only_a_proxy_at_the_usual_loopback_address_may_say_whom_it_speaks_for(server: Serving) -> None:
    headers = {"Authorization": None, "X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.9"}
    answer = server.post("/session", {"token": TOKEN}, headers=headers, source="127.0.0.2")
    assert "secure" not in answer.headers["set-cookie"].lower()


def test_wrong_tokens_are_counted_per_caller(server: Serving) -> None:
    def sign_in(token: str, *, of: str) -> int:
        headers = {"Authorization": None, "X-Forwarded-For": of}
        return server.post("/session", {"token": token}, headers=headers).status

    assert [sign_in("wrong", of="203.0.113.1") for _ in range(10)] == [401] * 10
    late = server.post("/session", {"token": TOKEN}, headers={"Authorization": None, "X-Forwarded-For": "203.0.113.1"})
    assert (late.status, 0 < int(late.headers["retry-after"]) <= 60) == (429, True)
    assert server.get("/status", headers={"X-Forwarded-For": "203.0.113.1"}).status == 429
    assert sign_in(TOKEN, of="203.0.113.2") == 201


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "192.0.2.1", "a@127.0.0.1"]
)
def test_names_that_others_point_here_are_refused(open_server: Serving, host: str) -> None:
    assert open_server.get("/status", headers={"Host": host}).status in (400, 403)
    assert open_server.get("/", prefix="", headers={"Host": host}).status in (400, 403)


def test_names_of_this_server_are_taken(folder: Folder) -> None:
    with serving(folder, "--public-host", "Shoal.example.com") as server:
        for host in (
            "localhost",
            "localhost:9",
            "127.0.0.1",
            "[::1]:8642",
            "shoal.example.com",
            "SHOAL.example.com:443",
        ):
            assert server.get("/status", headers={"Host": host}).status == 200, host
        assert server.get("/status", headers={"Host": None}).status == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://[bad"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_changes_that_another_site_asks_for_are_refused(open_server: Serving, headers: dict[str, str]) -> None:
    answer = open_server.post("/crawls/a-1/pause", headers=headers)
    assert (answer.status, "own page" in answer.error) == (403, True)
    assert open_server.get("/crawls", headers=headers).status == 200


def test_changes_of_the_own_page_and_of_programs_are_taken(open_server: Serving) -> None:
    own = {"Origin": f"http://127.0.0.1:{open_server.port}", "Sec-Fetch-Site": "same-origin"}
    assert open_server.post("/crawls/a-1/pause", headers=own).status == 404
    assert open_server.post("/crawls/a-1/pause").status == 404


def test_changes_are_not_made_by_get(open_server: Serving) -> None:
    for path in ("/crawls/a-1/pause", "/crawls/a-1/dead/requeue", "/session"):
        assert open_server.get(path).status == 405


def test_every_answer_has_the_headers_that_keep_scraped_text_a_text(open_server: Serving) -> None:
    for path in ("/status", "/crawls/nothing", "/nowhere", "/openapi.json"):
        headers = open_server.get(path).headers
        assert headers["content-security-policy"] == (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
            "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
        )
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["content-type"] == "application/json"
    refused = open_server.get("/status", headers={"Host": "evil.example"})
    assert refused.headers["x-content-type-options"] == "nosniff"


def test_a_large_body_is_refused_before_it_is_kept(open_server: Serving) -> None:
    body = b'{"spider": "' + b"x" * 1024 * 1024 + b'"}'
    assert open_server.post("/crawls", body, headers={"Content-Type": "application/json"}).status == 413
    assert open_server.post("/crawls", b"{", headers={"Content-Type": "application/json"}).status == 400
    assert open_server.post("/crawls", b"{}", headers={"Content-Type": "text/plain"}).status == 415
    assert open_server.post("/crawls", {"spider": "a.py", "odd": 1}).status == 422


def test_a_large_body_without_a_length_is_refused_as_well(open_server: Serving) -> None:
    with socket.create_connection(("127.0.0.1", open_server.port), timeout=30) as line:
        line.sendall(
            b"POST /api/v1/crawls HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"%x\r\n" % 65536 + b" " * 65536 + b"\r\n"
        try:
            for _ in range(40):
                line.sendall(chunk)
        except OSError:
            pass
        assert b" 413 " in line.recv(100)


def test_without_a_folder_no_spider_is_started(open_server: Serving) -> None:
    answer = open_server.post("/crawls", {"spider": "books.py"})
    assert (answer.status, "--spiders FOLDER" in answer.error) == (422, True)


@pytest.mark.parametrize(
    "spider",
    [
        "../outside.py",
        "/etc/passwd",
        "link.py",
        "sub/deep.py",
        "outside.py",
        "folder.py",
        "a.py\0b.py",
        "--help",
        "",
        "shoal.spider.generic",
    ],
)
def test_only_files_of_the_folder_are_started(among_spiders: tuple[Path, Serving], spider: str) -> None:
    folder, server = among_spiders
    assert server.get("/status").json["spiders"] == []
    assert server.post("/crawls", {"spider": spider}).status == 422
    assert not (folder / "shoal-logs").exists()


def test_tokens_do_not_reach_the_spider(folder: Folder) -> None:
    (folder.path / "spiders").mkdir()
    (folder.path / "spiders" / "leak.py").write_text(
        "import os\nraise SystemExit(repr([v for v in os.environ.values() if 'token' in v]))"
    )
    with serving(folder, "--spiders", "spiders", token=TOKEN) as server:
        answer = server.post("/crawls", {"spider": "leak.py"})
    assert answer.status == 422
    assert TOKEN not in answer.error
    (log,) = (folder.path / "shoal-logs").iterdir()
    assert TOKEN not in log.read_text()
