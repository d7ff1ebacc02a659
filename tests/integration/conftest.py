"""What several modules share: a shop on loopback, a folder to run commands in, and stores on an empty database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from command_line import Folder
from postgres_stores import Open
from pump_ground import Ground, ground_at

from shoal.store.postgres.store import PostgresStore
from shoal.testing.servers.object_server import MotoServer
from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.servers.rabbitmq_server import RabbitServer
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


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    """The name of an empty database."""
    name = f"test_{uuid4().hex}"
    postgres.new_database(name)
    return name


@pytest.fixture
async def new_store(postgres: PostgresServer, database: str) -> AsyncIterator[Open]:
    """Opens stores on that database and closes them."""
    async with AsyncExitStack() as opened:

        async def make(**options: int) -> PostgresStore:
            store = await PostgresStore.open(postgres.url(database), **options)
            opened.push_async_callback(store.close)
            return store

        yield make


@pytest.fixture
async def ground(rabbitmq: RabbitServer, tmp_path: Path) -> AsyncIterator[Ground]:
    async with ground_at(rabbitmq, tmp_path) as ground:
        yield ground


@pytest.fixture
async def sqs_ground(moto: MotoServer, tmp_path: Path) -> AsyncIterator[Ground]:
    async with ground_at(moto, tmp_path) as ground:
        yield ground
