"""Sinks that are behind: people are told, figures say how far, and a role of PostgreSQL that only sends is enough."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

from command_line import Folder
from prometheus_client.parser import text_string_to_metric_families
from serving import Serving, serving

from shoal.duties.alerts.config import AlertConfig, AlertRules, Target
from shoal.duties.alerts.watcher import AlertWatcher
from shoal.errors import StorageError
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.store import open_store
from shoal.store.base import SinkPlace, SinkState
from shoal.testing.clock import FakeClock
from shoal.testing.contract.store.rows import item
from shoal.testing.servers.http_receiver import http_receiver
from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import wait_until

PRODUCTS = 30
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "postgres.md"
PLACE = SinkPlace(spider="books", url="https://hooks.test/books")
CONFIG = """
[alerts]
sink_behind = "0.1s"
every = "0.2s"
hold = "0s"

[[alerts.to]]
name = "ops"
webhook = "{url}"
"""


async def test_an_alert_fires_once_while_a_sink_is_behind_also_while_its_store_gives_no_answer(tmp_path: Path) -> None:
    clock, is_away = FakeClock(1_000_000.0), False
    frontier = await SqliteFrontier.open(tmp_path / "shoal.db", clock=clock)
    store = await open_store(str(tmp_path / "results.db"))
    sink = await store.outbox.add(PLACE)
    await store.write([item("k")], [])

    async def sinks() -> list[SinkState]:
        if is_away:
            raise StorageError("the store is away")
        return await store.outbox.sinks()

    clock.step((await sinks())[0].oldest + 30.0 - clock())
    with http_receiver() as receiver:
        target = Target(name="ops", kind="webhook", url=receiver.url)
        config = AlertConfig(rules=AlertRules(sink_behind=60.0), targets=(target,), every=1.0, hold=0.0)
        watcher = AlertWatcher(config, frontier=frontier, say=print, sinks=sinks, clock=clock)

        async def told() -> list[str]:
            await watcher.look()
            return [json.loads(request.body)["state"] for request in receiver.received]

        assert await told() == []
        clock.advance(31.0)
        assert await told() == ["firing"]
        is_away = True
        assert await told() == ["firing"]
        is_away = False
        await store.outbox.passed(sink, await store.outbox.read(sink, limit=9))
        assert await told() == ["firing", "over"]
        assert json.loads(receiver.received[0].body)["about"] == "books https://hooks.test/books"
    await store.close()
    await frontier.close()


def figures(server: Serving) -> dict[str, float]:
    families = text_string_to_metric_families(server.get("/metrics", prefix="").body.decode())
    found = [sample for family in families for sample in family.samples if sample.name.startswith("shoal_sink_")]
    assert all(sample.labels["spider"] == "books" and sample.labels["sink"] == "1" for sample in found)
    return {sample.name.removeprefix("shoal_sink_"): sample.value for sample in found}


def test_serve_tells_of_a_sink_that_is_behind_until_it_has_caught_up(folder: Folder, site: SiteProcess) -> None:
    statuses = [500]
    with http_receiver(lambda _: statuses[-1]) as hook, http_receiver() as ops:
        folder.run("run", folder.spider(site.url), "--sink", f"{hook.url}#unsigned", code=1)
        (folder.path / "shoal.toml").write_text(CONFIG.format(url=ops.url))
        with serving(folder) as server:
            wait_until(lambda: len(ops.received) == 1, otherwise="no alert")
            assert json.loads(ops.received[0].body)["alert"] == "sink_behind"
            found = figures(server)
            assert (found["waiting"], found["delivered_total"], found["failing"]) == (PRODUCTS, 0, 1)
            assert found["behind_seconds"] > 0
            statuses.append(200)
            wait_until(lambda: figures(server)["waiting"] == 0, otherwise="changes still wait")
            caught_up = {"waiting": 0, "behind_seconds": 0, "delivered_total": PRODUCTS, "failing": 0}
            assert figures(server) == caught_up
            states = ["firing", "over"]
            wait_until(lambda: [json.loads(one.body)["state"] for one in ops.received] == states, otherwise="not over")


def test_a_role_with_the_grants_of_the_page_sends_what_waits_and_nothing_more(
    folder: Folder, site: SiteProcess, postgres: PostgresServer, database: str
) -> None:
    url, role, statuses = postgres.url(database), f"sender_{uuid4().hex[:8]}", [500]
    (grants,) = [part for part in PAGE.read_text().split("```") if part.startswith("sql\n")]
    with http_receiver(lambda _: statuses[-1]) as hook:
        place = f"{hook.url}#unsigned"
        folder.run("run", folder.spider(site.url), "--store", url, "--sink", place, code=1)
        postgres.call(grants.removeprefix("sql").replace("sender", role).replace("…", "w"), database=database)
        sender = f"postgresql://{role}:w@{url.partition('@')[2]}"
        (state,) = json.loads(folder.run("sink", "status", "--json", "--store", sender).stdout)
        assert state["waiting"] == PRODUCTS
        statuses.append(200)
        folder.run("sink", "send", "--store", sender)
    assert postgres.call("SELECT sent, trouble FROM shoal.sinks", database=database) == f"{PRODUCTS}|"
    may_read = f"SELECT has_table_privilege('{role}', 'shoal.items', 'SELECT')"
    assert postgres.call(may_read, database=database) == "f"
