"""Which pools a Scrapy project can use, which one a request gets, and whose fault a failed download is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import scrapy
from scrapy.core.downloader.handlers.http11 import TunnelError
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadCancelledError,
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
    ResponseDataLossError,
)
from scrapy.settings import Settings as ScrapySettings
from twisted.internet.error import ConnectBindError, ConnectionLost, TCPTimedOutError
from twisted.internet.error import ConnectionRefusedError as TwistedRefused
from twisted.python.failure import Failure
from twisted.web._newclient import ParseError
from twisted.web.client import ResponseNeverReceived

from shoal.errors import UsageError
from shoal.exits.troubles import Troubles
from shoal.fetch.base import FaultKind
from shoal.fetch.exits import ExitConfig
from shoal.model import DIRECT, Lease, Task
from shoal.scrapy.exits import LeasedExits, proxied_fault
from shoal.scrapy.pools import ProjectPools, pools_of
from shoal.scrapy.requests import UnfitRequest
from shoal.settings.table import Settings

CONFIG = ExitConfig(name="ring/a.test:3128", kind="proxy", url="http://anna:geheim@a.test:3128")
TABLES = """
[proxies.ring]
urls = ["http://anna:geheim@10.0.0.1:3128"]
[proxies.socks]
urls = ["socks5://anna:geheim@10.0.0.1:1080"]
[proxies.service]
url = "https://api.test/?key=geheim1234567&url={url}"
[accounts.members]
logins = [{name = "anna", password = "geheim"}]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(*, has_judge: bool = True, handlers: dict[str, str] | None = None, **settings: Any) -> ProjectPools:
    project = ScrapySettings({"DOWNLOAD_HANDLERS": handlers or {}})
    return pools_of(Settings(**settings), project, has_judge=has_judge)


def task(pool: str) -> Task:
    return Task(url="http://a.test/", key=1, lane="a.test", pool=pool)


def test_pools_of_a_shoal_toml_that_scrapy_cannot_use_are_left_to_other_spiders(folder: Path) -> None:
    (folder / "shoal.toml").write_text(TABLES)
    pools = read()
    assert (set(pools.specs), pools.default) == ({"ring"}, "")
    assert set(pools.unusable) == {"socks", "service", "members"}
    with pytest.raises(UnfitRequest, match="'members' cannot be used with Scrapy: accounts are logged in by spiders"):
        pools.of(scrapy.Request("http://a.test/", meta={"shoal_pool": "members"}), parent=None, goes_on=False)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pool": "rnig"}, "SHOAL_POOL: there is no pool 'rnig', only direct, ring; did you mean 'ring'?"),
        ({"pool": "members"}, "SHOAL_POOL: the pool 'members' cannot be used with Scrapy: accounts are logged in"),
        ({"proxies": "socks.txt"}, "SHOAL_PROXIES: the pool 'proxies' cannot be used with Scrapy: .*socks5://"),
        ({"proxies": "gateway.txt"}, "SHOAL_PROXIES: the pool 'proxies' .* it has a gateway"),
        ({"proxies": "secure.txt"}, "SHOAL_PROXIES: the pool 'proxies' .*https://"),
        ({"pool": "ring", "has_judge": False}, "SHOAL_POOL: the pool 'ring' .* DOWNLOADER_MIDDLEWARES lacks"),
        (
            {"pool": "ring", "handlers": {"https": "scrapy.core.downloader.handlers.http2.H2DownloadHandler"}},
            "SHOAL_POOL: the pool 'ring' .* HTTP/2",
        ),
    ],
)
def test_a_pool_that_is_asked_for_and_cannot_be_used_is_refused(
    folder: Path, settings: dict[str, Any], said: str
) -> None:
    (folder / "shoal.toml").write_text(TABLES)
    (folder / "socks.txt").write_text("socks5://anna:geheim@10.0.0.1:1080\n")
    (folder / "secure.txt").write_text("https://anna:geheim@10.0.0.1:1080\n")
    (folder / "gateway.txt").write_text("https://api.test/?key=geheim1234567&url={url}\n")
    with pytest.raises(UsageError, match=said) as refused:
        read(**settings)
    assert "geheim" not in str(refused.value)


def test_another_download_handler_may_know_other_proxies(folder: Path) -> None:
    (folder / "shoal.toml").write_text(TABLES)
    handler = "scrapy.core.downloader.handlers._httpx.HttpxDownloadHandler"
    assert set(read(handlers={"http": handler, "https": handler}).specs) == {"ring", "socks"}


def test_the_only_pool_of_the_file_is_the_default(folder: Path) -> None:
    (folder / "shoal.toml").write_text(TABLES)
    (folder / "mine.txt").write_text("http://10.0.0.2:3128\n")
    assert read(proxies="mine.txt").default == "proxies"
    assert read(proxies="mine.txt", pool="ring").default == "ring"
    assert read(proxies="mine.txt", pool="direct").default == "direct"


@pytest.mark.parametrize(
    ("url", "meta", "parent", "goes_on", "default", "pool"),
    [
        ("http://a.test/", {}, None, False, "", DIRECT),
        ("http://a.test/", {}, None, False, "ring", "ring"),
        ("http://a.test/", {"shoal_pool": "other"}, None, False, "ring", "other"),
        ("http://a.test/", {"shoal_pool": "direct"}, "other", False, "ring", DIRECT),
        ("http://a.test/", {}, "other", False, "", "other"),
        ("http://a.test/", {}, "other", False, "ring", "ring"),
        ("http://a.test/", {}, "other", True, "ring", "other"),
        ("http://a.test/", {}, "direct", True, "ring", DIRECT),
        ("http://a.test/", {"proxy": "http://own:1"}, "other", False, "ring", DIRECT),
        (
            "http://a.test/",
            {"proxy": "http://of-the-environment:1", "_scheme_proxy": True},
            None,
            False,
            "ring",
            "ring",
        ),
        ("http://a.test/", {"proxy": None}, None, False, "ring", "ring"),
        ("data:,x", {}, None, False, "ring", DIRECT),
    ],
)
def test_the_pool_of_a_request(
    folder: Path, url: str, meta: dict[str, Any], parent: str | None, goes_on: bool, default: str, pool: str
) -> None:
    (folder / "shoal.toml").write_text(TABLES.replace("[proxies.socks]", "[proxies.other]").replace("socks5:", "http:"))
    pools, page = read(pool=default), None if parent is None else task(parent)
    assert pools.of(scrapy.Request(url, meta=meta), parent=page, goes_on=goes_on) == pool


def test_what_no_proxy_can_serve_is_refused(folder: Path) -> None:
    (folder / "shoal.toml").write_text(TABLES)
    with pytest.raises(UnfitRequest, match=r'http and https only.*meta\["shoal_pool"\] = "direct"'):
        read(pool="ring").of(scrapy.Request("ftp://a.test/x"), parent=None, goes_on=False)
    with pytest.raises(UnfitRequest, match="there is no pool 7, only direct, ring"):
        read().of(scrapy.Request("http://a.test/", meta={"shoal_pool": 7}), parent=None, goes_on=False)


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def closed(*reasons: Exception) -> Exception:
    return caused(DownloadFailedError("x"), ResponseNeverReceived([Failure(reason) for reason in reasons]))


TUNNEL = "Could not open CONNECT tunnel with proxy a.test:3128 [{'status': %d, 'reason': b'no [x]'}]"


@pytest.mark.parametrize(
    ("error", "secure", "kind", "is_certain"),
    [
        (caused(DownloadConnectionRefusedError("x"), TwistedRefused()), False, FaultKind.EXIT, True),
        (caused(DownloadConnectionRefusedError("x"), ConnectionRefusedError(111, "no")), True, FaultKind.EXIT, True),
        (DownloadConnectionRefusedError("502 Bad Gateway"), True, FaultKind.EXIT, False),
        (TCPTimedOutError(), False, FaultKind.EXIT, True),
        (CannotResolveHostError("a.test"), False, FaultKind.EXIT, True),
        (ConnectBindError(24, "Too many open files"), False, FaultKind.SHORTAGE, False),
        (TunnelError(TUNNEL % 407), True, FaultKind.EXIT, True),
        (TunnelError(TUNNEL % 502), True, FaultKind.EXIT, False),
        (DownloadTimeoutError("took longer than 180 seconds."), False, FaultKind.TIMEOUT_TOTAL, False),
        (closed(ConnectionLost()), False, FaultKind.EXIT, False),
        (closed(ConnectionLost()), True, FaultKind.CONNECT, False),
        (closed(ParseError("nonsense", b"x")), False, FaultKind.PROTOCOL, False),
        (ResponseDataLossError(), False, FaultKind.TRUNCATED, False),
        (DownloadCancelledError("too large"), False, FaultKind.TOO_LARGE, False),
        (ValueError("of a middleware"), False, FaultKind.LOCAL, False),
    ],
)  # fmt: skip
def test_whose_fault_a_failed_download_is(error: Exception, secure: bool, kind: FaultKind, is_certain: bool) -> None:
    fault = proxied_fault(CONFIG, error, secure=secure)
    assert (fault.kind, fault.is_certain) == (kind, is_certain)
    assert "geheim" not in fault.message


def test_a_request_knows_the_proxy_only_while_it_is_sent() -> None:
    said: list[str] = []
    exits = LeasedExits(
        {CONFIG.name: CONFIG}, pools=(), troubles=Troubles(said.append), say=said.append, encoding="utf-8"
    )
    leased = exits.of(Lease(crawl="c-1", task=task("ring"), token=1, exit=CONFIG.name))
    assert leased is not None
    request = scrapy.Request(
        "http://a.test/", meta={"proxy": "http://other:1"}, headers={"Proxy-Authorization": "mine"}
    )
    before = request.to_dict()
    with leased.carries(request):
        assert request.meta["proxy"] == "http://a.test:3128"
        assert request.headers["Proxy-Authorization"] == b"Basic YW5uYTpnZWhlaW0="
    assert request.to_dict() == before
    plain = scrapy.Request("http://a.test/")
    with pytest.raises(ValueError, match="broken"), leased.carries(plain):
        raise ValueError("broken")
    assert (plain.meta, dict(plain.headers)) == ({}, {})
