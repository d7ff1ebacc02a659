"""Pipes on the command line: slips are named, and no password is shown."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from command_line import Folder

from shoal.frontier import open_frontier
from shoal.model import Crawl
from shoal.pipes.pump import name_of, note_unreadable
from shoal.testing.servers.rabbitmq_server import RabbitServer
from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 40
SECRET = "s3cr3t"
HERE = f"amqp://shoal:{SECRET}@127.0.0.1"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["worker", "books.py", "--pipe", HERE, "--frontier", "shoal.db"], "--pipe and --frontier: a worker behind"),
        (["worker", "books.py", "--pipe", f"kafka://x:{SECRET}@host"], "no pipe for kafka://x:***@host: use one of"),
        (["worker", "books.py", "--pipe", f"{HERE}/?prefx=one"], "an option that is not known: prefx"),
        (["worker", "books.py", "--pipe", f"{HERE}/?prefix=a.b"], "'a.b' is no prefix for queues"),
        (["worker", "books.py", "--pipe", f"{HERE}:port/"], "no port that is a number"),
        (["worker", "books.py", "--pipe", f"amqp://x:{SECRET}/@host/"], "write / ? # @ inside a password as %2F"),
        (["worker", "books.py", "--pipe", f"sqs://AKIA:{SECRET}@shoal"], "credentials come from AWS's usual chain"),
        (["worker", "books.py", "--pipe", "sqs://shoal?regoin=eu"], "an unknown option: regoin"),
        (["worker", "books.py", "--pipe", "sqs://shoal?endpoint=host:80"], "endpoint is the URL of a service"),
        (["worker", "books.py", "--pipe", "sqs://shoal?redelivery=0"], "redelivery is a number of seconds from 1"),
        (["serve", "--pipe", "shoal.db"], "no pipe for shoal.db"),
        (["status", "--frontier", HERE], f"--frontier {HERE.replace(SECRET, '***')} is a pipe: give it to"),
        (["run", "books.py", "--store", HERE], "is a pipe: give it to"),
    ],
)  # fmt: skip
def test_a_slip_is_named_and_nothing_is_made(folder: Folder, arguments: list[str], line: str) -> None:
    result = folder.run(*arguments, code=2)
    assert line in result.stderr
    assert SECRET not in result.stdout + result.stderr
    assert list(folder.path.iterdir()) == []


@pytest.mark.parametrize("command", ["serve", "worker"])
@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("guest:guest", f"guest:{SECRET}"), "refuses us: check user and password in the URL"),
        (("/?", "/nowhere?"), "check the virtual host in the URL"),
    ],
)
def test_what_the_broker_refuses_ends_the_command(
    folder: Folder, rabbitmq: RabbitServer, site: SiteProcess, command: str, change: tuple[str, str], line: str
) -> None:
    arguments = ["serve", "--port", "0"] if command == "serve" else ["worker", folder.spider(site.url)]
    result = folder.run(*arguments, "--pipe", rabbitmq.at("refused").replace(*change), code=2)
    assert line in result.stderr
    assert SECRET not in result.stdout + result.stderr


def test_status_tells_of_messages_that_could_not_be_read(folder: Folder) -> None:
    async def note() -> None:
        frontier = await open_frontier(str(folder.path / "shoal.db"))
        await frontier.open_crawl(Crawl(id="books-1", spider="books"))
        await name_of(frontier)
        await note_unreadable(frontier, pipe="amqp://host/", number=3)
        await frontier.close()

    asyncio.run(note())
    result = folder.run("status", "books-1")
    assert "3 messages at amqp://host/ could not be read: kept in its queue unreadable" in result.stderr


# A run of its own makes the crawl: its items are in the coordinator's file.
def test_a_worker_that_cannot_know_the_coordinators_file_asks_for_a_store(
    folder: Folder, rabbitmq: RabbitServer, site: SiteProcess
) -> None:
    spider, pipe = folder.spider(site.url, rate="1/s"), rabbitmq.at(f"t{uuid.uuid4().hex[:12]}")
    elsewhere = Folder(folder.path / "elsewhere")
    elsewhere.path.mkdir()
    with folder.start("run", spider) as run, folder.start("serve", "--port", "0", "--pipe", pipe) as serve:
        folder.wait_for_pages(1)
        result = elsewhere.run("worker", str(folder.path / spider), "--pipe", pipe, code=2)
        run.terminate()
        serve.terminate()
        run.communicate()
        serve.communicate()
    assert "the coordinator's own file: begin crawls with a place that all machines reach" in result.stderr
    assert list(elsewhere.path.iterdir()) == []
