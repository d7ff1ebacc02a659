"""Pages in a real Chromium: rendered, bounded, and kept away from private addresses. One browser for all tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from shoal.browser.chromium import processes_below
from shoal.browser.fetcher import BrowserFetcher
from shoal.fetch.base import Fault, FaultKind, Fetch, Response
from shoal.fetch.exits import ExitConfig
from shoal.fetch.http import HttpFetcher
from shoal.model import Render
from shoal.settings.table import Settings
from shoal.testing.servers.programs import find_program
from shoal.testing.servers.proxy_servers import Microsocks, Tinyproxy
from shoal.testing.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

HTML = "text/html"
MIB = 1024 * 1024
ELSEWHERE = "127.0.0.1"  # where nothing may go
EXIT = "127.0.0.3"  # of a proxy
SITE = "127.0.0.2"  # the only address that is allowed

SCAN = """<body><h1></h1><script>
const places = ["http://127.0.0.1:%(port)d/", "http://169.254.169.254/latest/", "http://localhost:%(port)d/"];
const tries = places.map(url => fetch(url, {mode: "no-cors"}).then(() => 0).catch(() => 0));
tries.push(new Promise(done => { const socket = new WebSocket("ws://127.0.0.1:%(port)d/"); socket.onerror = done; }));
tries.push(new Promise(done => {
    const picture = new Image(); picture.onerror = done; picture.src = "/to-private"; }));
tries.push(new Promise(done => {
    const frame = document.createElement("iframe"); frame.onload = done; frame.src = "/to-private";
    document.body.append(frame); }));
const peer = new RTCPeerConnection({iceServers: [{urls: "stun:127.0.0.1:%(port)d"}]});
peer.createDataChannel("x"); peer.createOffer().then(offer => peer.setLocalDescription(offer));
Promise.all(tries).then(() => { document.querySelector("h1").textContent = "scanned"; document.body.id = "ready"; });
</script>"""
SERVICE = """<body><script>
navigator.serviceWorker.register("/worker.js").then(() => navigator.serviceWorker.ready).then(async () => {
    await new Promise(done => {
        navigator.serviceWorker.onmessage = event => { document.body.textContent = event.data; done(); };
        navigator.serviceWorker.ready.then(found => found.active.postMessage("go")); });
    document.body.id = "ready"; });
</script>"""
WORKER = """onmessage = async event => {
    const said = await fetch("http://127.0.0.1:%(port)d/by-worker", {mode: "no-cors"}).then(() => "reached")
        .catch(() => "refused");
    event.source.postMessage(said); };"""
SCROLLED = """<body style="height: 3000px"><script>
let pages = 0;
addEventListener("scroll", () => {
    if (pages < 5 && scrollY + innerHeight >= document.documentElement.scrollHeight - 50) {
        pages += 1;
        document.body.append(Object.assign(document.createElement("p"), {textContent: `part ${pages}`}));
        document.body.style.height = 3000 + pages * 2000 + "px"; } });
</script>"""
MANNERS = """<body><script>
alert("an alert"); confirm("sure?"); prompt("name?");
onbeforeunload = event => event.preventDefault();
open("/window"); open("/window");
const link = document.createElement("a"); link.href = "/download"; link.download = "file"; link.click();
setTimeout(() => { document.body.id = "ready"; }, 100);
</script>"""
PAGES = {
    "/script": (HTML, "<body><script>document.cookie = 'visited=yes-or-no';"
                " fetch('/words').then(a => a.text())"
                ".then(t => { document.body.innerHTML = `<h1>${t}</h1>`; })</script>"),
    "/words": ("text/plain", "said by a script"),
    "/plain": (HTML, "<h1>plain</h1>"),
    "/json": ("application/json", '{"a": 1}'),
    "/hang": (HTML, "<body><script>while (true) {}</script>"),
    "/hog": (HTML, "<body><script>const all = []; setInterval(() =>"
             " all.push(new Uint8Array(32 * 1024 * 1024).fill(1)), 10)</script>"),
    "/scan": (HTML, SCAN),
    "/service": (HTML, SERVICE),
    "/worker.js": ("text/javascript", WORKER),
    "/scrolled": (HTML, SCROLLED),
    "/manners": (HTML, MANNERS),
    "/window": (HTML, "<body>a window"),
    "/click": (HTML, "<body><button onclick=\"this.outerHTML='<h1>clicked</h1>'\">more</button>"),
    "/picture": (HTML, "<body><img src=/image.png><h1>pictures</h1>"),
    "/image.png": ("image/png", "no picture"),
    "/many": (HTML, "<body><script>for (let n = 0; n < 60; n += 1) fetch('/words?' + n)</script>"),
    "/large": (HTML, "<body><script>fetch('/bulk').then(a => a.text())</script>"),
    "/bulk": ("text/plain", "x" * (3 * MIB)),
    "/slow-script": (HTML, "<body><script>setTimeout(() => { document.body.id = 'ready' }, 60000)</script>"),
}  # fmt: skip


class Site:
    """A site on an address of its own, and a server at a private address that nobody may reach."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.heads: list[str] = []
        self.peers: list[tuple[str, str]] = []
        self.reached: list[bytes] = []
        self._news = asyncio.Event()

    async def open(self) -> None:
        self._servers = [
            await asyncio.start_server(self._serve, SITE, 0),
            await asyncio.start_server(self._reach, ELSEWHERE, 0),
        ]
        self.port, self.private = (server.sockets[0].getsockname()[1] for server in self._servers)

    async def close(self) -> None:
        for server in self._servers:
            server.close()

    async def was_asked(self, path: str, *, times: int = 1) -> None:
        """Wait until this was asked for so many times in all."""
        while self.asked.count(path) < times:
            self._news.clear()
            await self._news.wait()

    def url(self, path: str) -> str:
        return f"http://{SITE}:{self.port}{path}"

    async def _reach(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reached.append(await reader.read(100))
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split()[1]
            self.asked.append(path)
            self.peers.append((path, writer.get_extra_info("peername")[0]))
            self.heads.append(head)
            self._news.set()
            writer.write(self._answer(path))
            await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    def _answer(self, path: str) -> bytes:
        if path == "/to-private":
            return f"HTTP/1.1 302 Found\r\nLocation: http://{ELSEWHERE}:{self.private}/\r\n\r\n".encode()
        if path == "/nothing":
            return b"HTTP/1.1 204 No Content\r\n\r\n"
        if path == "/download":
            return b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Disposition: attachment\r\n\r\nthe file"
        kind, text = PAGES.get(path.partition("?")[0], (HTML, "nothing"))
        body = (text.replace("%(port)d", str(self.private))).encode()
        return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


SETTINGS = Settings(
    allow_addresses=(f"{SITE}/32",),
    render_seconds=20.0,
    render_memory=400 * MIB,
    render_requests=50,
    render_bytes=2 * MIB,
    user_agent="shoal-test",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site() -> AsyncIterator[Site]:
    opened = Site()
    await opened.open()
    yield opened
    await opened.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fetcher() -> AsyncIterator[BrowserFetcher]:
    servers = processes_below(os.getpid())  # that earlier tests share
    opened = BrowserFetcher(HttpFetcher(SETTINGS), program=find_program("chromium"), settings=SETTINGS)
    yield opened
    await opened.close()
    assert set(processes_below(os.getpid())) <= set(servers)


async def rendered(fetcher: BrowserFetcher, site: Site, path: str, **options: object) -> Response:
    answer = await fetcher.fetch(Fetch(url=site.url(path), render=Render(**options)))  # type: ignore[arg-type]
    assert isinstance(answer, Response), answer
    return answer


async def failed(fetcher: BrowserFetcher, site: Site, path: str, **options: object) -> Fault:
    answer = await fetcher.fetch(Fetch(url=site.url(path), render=Render(**options)))  # type: ignore[arg-type]
    assert isinstance(answer, Fault), answer
    return answer


async def can_render(fetcher: BrowserFetcher, site: Site) -> bool:
    return isinstance(await fetcher.fetch(Fetch(url=site.url("/plain"), render=Render())), Response)


async def test_gives_the_dom_that_scripts_have_made(fetcher: BrowserFetcher, site: Site) -> None:
    answer = await rendered(fetcher, site, "/script", wait_for="h1", screenshot=True)
    assert b"<h1>said by a script</h1>" in answer.body
    assert (answer.status, answer.url) == (200, site.url("/script"))
    assert answer.headers["set-cookie"] == "visited=yes-or-no; Path=/"
    assert answer.screenshot.startswith(b"\x89PNG")
    assert answer.wire_size > 0
    assert (answer.page_requests, answer.page_refused) == (2, 0)  # the page, and what its script asks for


async def test_sends_the_headers_and_cookies_of_the_request(fetcher: BrowserFetcher, site: Site) -> None:
    headers = {"Cookie": "session=of-the-account", "X-Mark": "here"}
    answer = await fetcher.fetch(Fetch(url=site.url("/script"), headers=headers, render=Render(wait_for="h1")))
    assert isinstance(answer, Response)
    document, words = (next(h for h in reversed(site.heads) if f" {path} " in h) for path in ("/script", "/words"))
    assert "X-Mark: here" in document
    assert "X-Mark" not in words
    assert all("session=of-the-account" in head and "shoal-test" in head for head in (document, words))
    assert "session" not in answer.headers["set-cookie"]


async def test_a_request_without_render_needs_no_browser(fetcher: BrowserFetcher, site: Site) -> None:
    answer = await fetcher.fetch(Fetch(url=site.url("/script")))
    assert isinstance(answer, Response)
    assert b"fetch(" in answer.body


async def test_follows_no_redirect_and_takes_what_is_no_page_as_it_came(fetcher: BrowserFetcher, site: Site) -> None:
    hop = await rendered(fetcher, site, "/to-private")
    assert (hop.status, hop.headers["location"]) == (302, f"http://{ELSEWHERE}:{site.private}/")
    assert (await rendered(fetcher, site, "/json")).body == b'{"a": 1}'
    assert (await rendered(fetcher, site, "/download")).body == b"the file"
    assert (await rendered(fetcher, site, "/nothing")).status == 204
    assert site.reached == []


async def test_scrolls_clicks_and_runs_scripts(fetcher: BrowserFetcher, site: Site) -> None:
    scrolled = await rendered(fetcher, site, "/scrolled", steps=({"scroll": 20},))
    assert b"part 5" in scrolled.body
    steps = ({"click": "button"}, {"wait_for": "h1"}, {"script": "document.title = 'by script'"})
    clicked = await rendered(fetcher, site, "/click", steps=steps)
    assert b"<h1>clicked</h1>" in clicked.body
    assert b"<title>by script</title>" in clicked.body


async def test_blocked_types_are_not_fetched(fetcher: BrowserFetcher, site: Site) -> None:
    await rendered(fetcher, site, "/picture", block=("image",))
    assert "/image.png" not in site.asked
    await rendered(fetcher, site, "/picture")
    assert "/image.png" in site.asked


async def test_no_page_reaches_a_private_address(fetcher: BrowserFetcher, site: Site) -> None:
    answer = await rendered(fetcher, site, "/scan", wait_for="#ready")
    assert b"scanned" in answer.body
    assert site.reached == []
    assert answer.page_refused >= 6  # three fetches, a websocket, two redirects
    assert answer.page_requests >= answer.page_refused
    fault = await fetcher.fetch(Fetch(url=f"http://{ELSEWHERE}:{site.private}/", render=Render()))
    assert isinstance(fault, Fault)
    assert fault.kind is FaultKind.REFUSED_ADDRESS
    assert "loopback" in fault.message
    assert site.reached == []


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("http", marks=pytest.mark.full),
        "http with credentials",
        pytest.param("socks", marks=pytest.mark.full),
    ],
)
async def test_a_page_leaves_through_its_exit_and_past_the_guard(site: Site, tmp_path: Path, kind: str) -> None:
    signed = {"user": "me", "password": "se-cret"} if "credentials" in kind else {}
    opened = Microsocks(address=EXIT) if kind == "socks" else Tinyproxy(tmp_path, address=EXIT, **signed)
    proxy = opened.start()
    exits = {"one": ExitConfig(name="one", kind="proxy", url=proxy.url)}
    fetcher, guarded = (
        BrowserFetcher(HttpFetcher(settings), program=find_program("chromium"), settings=settings, exits=exits)
        for settings in (msgspec.structs.replace(SETTINGS, allow_private=True), SETTINGS)
    )
    try:
        request = Fetch(url=site.url("/script"), exit="one", render=Render(wait_for="h1"))
        site.peers.clear()
        answer = await fetcher.fetch(request)
        assert isinstance(answer, Response), answer
        assert b"said by a script" in answer.body
        assert {path: peer for path, peer in site.peers if path != "/favicon.ico"} == {"/script": EXIT, "/words": EXIT}
        refused = await guarded.fetch(request)
        assert isinstance(refused, Fault)
        assert refused.kind is FaultKind.REFUSED_ADDRESS
        proxy.stop()
        fault = await fetcher.fetch(request)
        assert isinstance(fault, Fault)
        assert fault.kind is FaultKind.EXIT
    finally:
        proxy.stop()
        await fetcher.close()
        await guarded.close()


@pytest.mark.full
async def test_a_service_worker_is_guarded_too(fetcher: BrowserFetcher, site: Site) -> None:
    answer = await rendered(fetcher, site, "/service", wait_for="#ready")
    assert b"refused" in answer.body
    assert site.reached == []


@pytest.mark.full
async def test_dialogs_windows_and_downloads_do_not_hold_a_page(fetcher: BrowserFetcher, site: Site) -> None:
    answer = await rendered(fetcher, site, "/manners", wait_for="#ready")
    assert answer.status == 200


async def test_a_hung_page_ends_at_its_deadline_and_others_go_on(fetcher: BrowserFetcher, site: Site) -> None:
    hung, other = await asyncio.gather(
        failed(fetcher, site, "/hang", seconds=3.0), rendered(fetcher, site, "/script", wait_for="h1")
    )
    assert (hung.kind, hung.message) == (FaultKind.TIMEOUT_TOTAL, "not rendered within 3 s (render_seconds)")
    assert b"said by a script" in other.body


@pytest.mark.full
async def test_a_page_with_too_much_memory_is_killed_and_others_go_on(fetcher: BrowserFetcher, site: Site) -> None:
    await rendered(fetcher, site, "/plain")  # it may be the first page of all
    started = fetcher.chromium.started
    hog, other = await asyncio.gather(
        failed(fetcher, site, "/hog", wait_for="#never"), rendered(fetcher, site, "/script", wait_for="h1")
    )
    assert hog.kind is FaultKind.BROWSER
    assert "render_memory" in hog.message
    assert b"said by a script" in other.body
    assert fetcher.chromium.killed >= 1
    assert (await rendered(fetcher, site, "/plain")).status == 200
    assert fetcher.chromium.started == started


@pytest.mark.full
@pytest.mark.parametrize(("path", "setting"), [("/many", "render_requests"), ("/large", "render_bytes")])
async def test_a_page_beyond_a_limit_is_given_up(fetcher: BrowserFetcher, site: Site, path: str, setting: str) -> None:
    fault = await failed(fetcher, site, path, wait="quiet")
    assert fault.kind is FaultKind.TOO_LARGE
    assert setting in fault.message


async def test_a_browser_that_dies_costs_its_pages_and_no_later_one(fetcher: BrowserFetcher, site: Site) -> None:
    pages = [asyncio.ensure_future(failed(fetcher, site, "/slow-script", wait_for="#ready")) for _ in range(2)]
    asked = site.asked.count("/slow-script")
    await site.was_asked("/slow-script", times=asked + 2)
    os.kill(_main_process(), signal.SIGKILL)
    faults = await asyncio.gather(*pages)
    # With two pages in it nobody knows which one killed it: both are tried again for free.
    assert [fault.kind for fault in faults] == [FaultKind.LOCAL, FaultKind.LOCAL]
    assert (await rendered(fetcher, site, "/plain")).status == 200


@pytest.mark.full
async def test_a_page_that_kills_its_browser_again_is_charged(fetcher: BrowserFetcher, site: Site) -> None:
    for kind in (FaultKind.BROWSER, FaultKind.BROWSER):
        asked = site.asked.count("/slow-script")
        alone = asyncio.ensure_future(failed(fetcher, site, "/slow-script", wait_for="#ready"))
        other = asyncio.ensure_future(rendered(fetcher, site, "/script", wait_for="h1"))
        await other
        await site.was_asked("/slow-script", times=asked + 1)
        # The second time the page has a browser of its own, beside the other's, which has no page any more.
        for pid in _processes(b"chromium"):
            os.kill(pid, signal.SIGKILL)
        assert (await alone).kind is kind
        # That the other one is dead, too, is known a moment later.
        await eventually(lambda: can_render(fetcher, site))


@pytest.mark.full
async def test_a_driver_that_dies_is_replaced(fetcher: BrowserFetcher, site: Site) -> None:
    await rendered(fetcher, site, "/plain")
    page = asyncio.ensure_future(failed(fetcher, site, "/slow-script?driver", wait_for="#ready"))
    await site.was_asked("/slow-script?driver")
    os.kill(_process(b"/driver/node"), signal.SIGKILL)
    assert (await page).kind is FaultKind.LOCAL
    assert (await rendered(fetcher, site, "/plain")).status == 200


@pytest.mark.full
async def test_a_browser_that_cannot_be_started_is_a_shortage_of_the_machine(site: Site) -> None:
    fetcher = BrowserFetcher(HttpFetcher(SETTINGS), program="/bin/false", settings=SETTINGS)
    try:
        fault = await failed(fetcher, site, "/plain")
    finally:
        await fetcher.close()
    assert fault.kind is FaultKind.SHORTAGE
    assert fault.message.startswith("no browser can be started: ")


def _main_process() -> int:
    """The browser itself: its children have a type."""
    return _process(b"chromium")


def _process(name: bytes) -> int:
    return next(iter(_processes(name)))


def _processes(name: bytes) -> list[int]:
    found = []
    for pid in processes_below(os.getpid()):
        with contextlib.suppress(OSError):  # it may have ended meanwhile
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if name in words[0] and not any(word.startswith(b"--type=") for word in words):
                found.append(pid)
    assert found, f"no {name!r} runs"
    return found


RENDERS = """
import asyncio, sys
from shoal.fetch.base import Fetch
from shoal.browser.fetcher import BrowserFetcher
from shoal.fetch.http import HttpFetcher
from shoal.model import Render
from shoal.settings.table import Settings

async def main(url, program):
    settings = Settings(allow_addresses=("127.0.0.2/32",))
    fetcher = BrowserFetcher(HttpFetcher(settings), program=program, settings=settings)
    print(await fetcher.fetch(Fetch(url=url, render=Render())))
    await fetcher.close()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
async def test_pages_are_rendered_where_nothing_in_tmp_may_be_executed(site: Site) -> None:
    """As in a container, whose /tmp is mounted so."""
    # The project may lie in /tmp itself, and must be seen there.
    root = shlex.quote(str(Path(__file__).parents[2]))
    mount = f"mount --bind {root} /mnt && mount -t tmpfs -o noexec,nosuid,nodev tmpfs /tmp"
    mount += f" && mkdir -p {root} && mount --bind /mnt {root}"
    words = [sys.executable, "-c", RENDERS, site.url("/plain"), find_program("chromium")]
    script = f"{mount} && TMPDIR=/tmp exec {shlex.join(words)}"
    process = await asyncio.create_subprocess_exec(
        "unshare", "--mount", "sh", "-c", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    assert b"<h1>plain</h1>" in said, said


@pytest.mark.full
async def test_a_browser_is_there_before_the_page_that_needs_it(site: Site) -> None:
    settings = Settings(allow_addresses=(f"{SITE}/32",), render_recycle=1)
    fetcher = BrowserFetcher(HttpFetcher(settings), program=find_program("chromium"), settings=settings)
    try:
        await fetcher.warm()
        assert fetcher.chromium.started == 1
        await rendered(fetcher, site, "/plain")
        # The first one was for one page only: the next one starts by itself.
        await eventually(lambda: fetcher.chromium.started == 2)
    finally:
        await fetcher.close()


@pytest.mark.full
async def test_a_browser_is_replaced_after_so_many_pages(site: Site) -> None:
    settings = Settings(allow_addresses=(f"{SITE}/32",), render_recycle=2)
    fetcher = BrowserFetcher(HttpFetcher(settings), program=find_program("chromium"), settings=settings)
    try:
        for _ in range(3):
            await rendered(fetcher, site, "/plain")
        assert fetcher.chromium.started == 2
    finally:
        await fetcher.close()
