"""Alerts beside `shoal serve`: sent by it, named by it, and once, however many of them watch."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import Folder
from serving import serving

from shoal.frontier import open_frontier
from shoal.model import Crawl, Dead
from shoal.testing.fakes import task_for
from shoal.testing.servers.http_receiver import http_receiver
from shoal.testing.waiting import wait_until

CONFIG = """
[alerts]
every = "0.2s"
hold = "0s"
dead_letters = 0

[[alerts.to]]
name = "ops"
webhook = "{url}"
"""


async def with_dead_letter(path: Path) -> None:
    frontier = await open_frontier(str(path))
    await frontier.open_crawl(Crawl(id="c-1", spider="c", interval=0.0, created=1.0))
    await frontier.put("c-1", [task_for("https://a.test/1"), task_for("https://a.test/2")])
    (lease,) = (await frontier.lease(["c-1"], 1, worker="w", seconds=60.0, horizon=0.0)).leases
    await frontier.settle([Dead(lease=lease, reason="http_500")])
    await frontier.close()


async def test_two_servers_tell_people_once_and_both_name_the_alert(folder: Folder) -> None:
    await with_dead_letter(folder.path / "shoal.db")
    with http_receiver() as receiver:
        (folder.path / "shoal.toml").write_text(CONFIG.format(url=receiver.url))
        with serving(folder) as first, serving(folder) as second:
            for server in (first, second):
                (alert,) = wait_until(lambda at=server: at.get("/status").json["alerts"], otherwise="no alert fires")  # type: ignore[misc]  # bound now
                assert (alert["name"], alert["crawl"]) == ("dead_letters", "c-1")
            assert first.post("/crawls/c-1/dead/drop", {"all": True}).json == {"dropped": 1}
            wait_until(lambda: not second.get("/status").json["alerts"], otherwise="the alert is not over")
            # It is noted as over before that is sent.
            wait_until(lambda: len(receiver.received) > 1, otherwise="nobody is told that it is over")
        assert [json.loads(one.body)["state"] for one in receiver.received] == ["firing", "over"]


def test_a_mistake_in_the_alerts_is_refused_at_the_start(folder: Folder) -> None:
    for text, named in (("[alerts]\ndead_leters = 5\n", "dead_leters"), ("[alert]\ndead_letters = 5\n", "'alert'")):
        (folder.path / "shoal.toml").write_text(text)
        assert named in folder.run("serve", "--port", "0", code=2).stderr
