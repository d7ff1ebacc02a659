"""Every page of the documents does what it says: its commands are run, its spiders crawl, its SQL is asked.

The servers that pages name are put in place by ones on this machine. Some tens of seconds in all: a reader types these
lines, too, and each is a process.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from document_run import DocumentRun, typed
from documents_site import documents_site

from docs_pages import PAGES, ROOT, blocks, is_generated, name_of
from shoal.testing.servers.object_server import MotoServer
from shoal.testing.servers.postgres_server import POSTGRES_PASSWORD
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import site_process

TUTORIAL = "docs/tutorial.md"
HAVE_COMMANDS = [
    pytest.param(path, id=name_of(path), marks=[] if name_of(path) == "README.md" else pytest.mark.full)
    for path in PAGES
    if any(not block.mark and typed(block) for block in blocks(path))
]
SPIDERS = [
    pytest.param(path, number, id=f"{name_of(path)}-{number}")
    for path in PAGES
    for number, block in enumerate(blocks(path))
    if block.is_spider and not block.name and not block.mark
]
BEGINNERS = ("shoal run ", "shoal crawl ", "shoal deploy ", "shoal serve ")
# Files that readers of a page have, beside books.py and shop.py.
FILES = {
    "docs/how-to/accounts.md": {"shoal.toml": '[accounts.shop]\nlogins = [{name = "anna", password_env = "ANNA"}]\n'},
}
ENVIRONMENT = {
    **MotoServer.ENVIRONMENT,
    "SHOAL_WEBHOOK_SECRET": "the-secret-of-a-webhook",
    "PGPASSWORD": POSTGRES_PASSWORD,  # a crawl remembers its store without the password
}
# What they have done before: a page that begins a crawl finds none, any other one a crawl of both spiders.
BEFORE = {
    "docs/how-to/exporting.md": [
        "shoal run books.py",
        "shoal run books.py --again",
        "shoal run books.py --again",
        "shoal run books.py --frontier other.db --store postgresql://db/shop",
    ],
    "docs/how-to/from-queues.md": ["shoal run books.py --frontier redis://queue.internal/0"],
}


class Stand:
    """The servers in place of those that documents name; each is started when a page asks for it."""

    def __init__(self, request: pytest.FixtureRequest, *, shop: str, site: str) -> None:
        self._request = request
        self._name = f"docs_{uuid4().hex[:8]}"
        self._shop = shop
        self._site = site

    def local(self, text: str) -> str:
        """The same text, with servers of this machine."""
        text = re.sub(r"https://books\.toscrape\.com/(?!\w)", f"{self._shop}catalogue/page-1.html", text)
        text = text.replace("https://books.toscrape.com/", self._shop).replace("http://127.0.0.1:8000/", self._shop)
        text = re.sub(r"https://(?:[\w-]+\.)*example(?:\.com)?(?![\w.])", self._site, text)
        # As many as there are cores: each worker takes half a second to start.
        text = re.sub(r"--workers \d+", "--workers 2", text)
        text = re.sub(r"redis://[a-z][\w.-]*(?::\d+)?/0", self._redis, text)
        text = re.sub(r"postgresql://[\w.:@-]+/(?:results|shop)\b", self._postgres, text)
        text = re.sub(r"s3://([\w-]+)/\w+", self._bucket, text)
        text = re.sub(r"amqp://[\w.:@-]+/", self._broker, text)
        return re.sub(r"(?<![\w/.@-])(?:shop|books)\.example(?!\w)", "127.0.0.1", text)

    def _redis(self, _: re.Match[str]) -> str:
        return str(self._request.getfixturevalue("redis").url)

    def _postgres(self, _: re.Match[str]) -> str:
        server = self._request.getfixturevalue("postgres")
        if not server.call(f"SELECT 1 FROM pg_database WHERE datname = '{self._name}'"):
            server.new_database(self._name)
        return str(server.url(self._name))

    def _bucket(self, found: re.Match[str]) -> str:
        server = self._request.getfixturevalue("moto")
        server.make_bucket(self._name.replace("_", "-"))
        return f"'{server.url(self._name.replace('_', '-'), found[1])}'"

    def _broker(self, _: re.Match[str]) -> str:
        # SQS, the other broker of that page: RabbitMQ takes longer to start than all pages to run.
        return f"'{self._request.getfixturevalue('moto').queues_url(self._name)}'"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A catalogue in the place of books.toscrape.com."""
    log = tmp_path_factory.mktemp("shop") / "hits.jsonl"
    with site_process("--products", "20", "--hosts", "127.0.0.1", log=log) as running:
        yield running.url


@pytest.fixture
def tutorial_shop(tmp_path: Path) -> Iterator[str]:
    """The catalogue that the tutorial starts."""
    with site_process("--products", "60", log=tmp_path / "hits.jsonl") as running:
        yield running.url


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with documents_site() as url:
        yield url


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture
def redis(redis_server: RedisServer) -> RedisServer:
    """The server, empty."""
    import redis as client

    with client.Redis.from_url(redis_server.url) as connection:
        connection.flushall()
    return redis_server


@pytest.fixture
def stand(request: pytest.FixtureRequest, shop: str, site: str) -> Stand:
    is_tutorial = request.node.callspec.params["path"] == ROOT / TUTORIAL
    return Stand(request, shop=request.getfixturevalue("tutorial_shop") if is_tutorial else shop, site=site)


def spider_named(page: str, name: str) -> str:
    """The first spider of a page, or the file of that name."""
    found = blocks(ROOT / page)
    return next(block.text for block in found if block.name == name or (not name and block.is_spider))


def furnish(run: DocumentRun) -> None:
    """The spiders that pages take for granted."""
    run.write("books.py", spider_named("README.md", "books.py"))
    run.write("shop.py", spider_named("docs/how-to/handlers.md", ""))


@pytest.fixture(scope="module")
def finished(shop: str, site: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder with a finished crawl of each of the two spiders."""
    folder = tmp_path_factory.mktemp("finished")
    run = DocumentRun(folder, Stand(request, shop=shop, site=site).local, {})
    furnish(run)
    run.command("shoal run shop.py --archive pages/")
    run.command("shoal run books.py --archive pages/")
    return folder


def begins_a_crawl(path: Path) -> bool:
    first = next(block for block in blocks(path) if not block.mark and typed(block))
    return typed(first)[0].startswith(BEGINNERS)


@pytest.mark.parametrize("path", HAVE_COMMANDS)
def test_the_commands_of_a_page_do_what_it_says(path: Path, stand: Stand, finished: Path, tmp_path: Path) -> None:
    if not begins_a_crawl(path):
        shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    run = DocumentRun(tmp_path, stand.local, ENVIRONMENT)
    furnish(run)
    try:
        for line in BEFORE.get(name_of(path), []):
            run.command(line)
        run.run(blocks(path))
    finally:
        run.close()


@pytest.mark.full
@pytest.mark.parametrize(("path", "number"), SPIDERS)
def test_a_spider_of_a_page_crawls(path: Path, number: int, stand: Stand, tmp_path: Path) -> None:
    run = DocumentRun(tmp_path, stand.local, {"ANNA": "x", "SHOAL_MAX_PAGES": "40"})
    block = blocks(path)[number]
    run.write("spider.py", block.text)
    for name, text in FILES.get(name_of(path), {}).items():
        run.write(name, text)
    result = json.loads(run.command("shoal run spider.py --json"))
    assert result["outcomes"]["ok"] >= 1
    assert "handler" not in result["outcomes"]
    if "Item(" in block.text or "yield {" in block.text:
        assert result["items"] >= 1


def test_generated_pages_are_those_of_the_reference() -> None:
    assert {path.parent.name for path in PAGES if is_generated(path)} == {"reference"}
