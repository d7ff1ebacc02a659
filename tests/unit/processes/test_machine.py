"""Who is gone: only processes of this machine can be asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.model import Crawl, Heartbeat, Task
from shoal.run.coordinator import Coordinator
from shoal.testing.clock import FakeClock
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.worker.machine import is_running, this_machine


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_process_is_running_until_it_has_ended() -> None:
    assert is_running(os.getpid())
    assert is_running(1)
    assert not is_running(ended_process())


def test_all_processes_of_a_machine_agree_on_which_it_is() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "from shoal.worker.machine import this_machine; print(this_machine())"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert told.strip() == this_machine()


async def test_workers_of_a_machine_with_the_same_name_are_left_alone() -> None:
    frontier = MemoryFrontier(clock=FakeClock())
    crawl = await frontier.open_crawl(Crawl(id="c", spider="s", interval=0.0))
    await frontier.put("c", [Task(url=f"http://a.test/{key}", key=key, lane="a.test") for key in (1, 2)])
    pid = ended_process()
    for name, machine in (("here", this_machine()), ("elsewhere", "another boot")):
        await frontier.lease(["c"], 1, worker=name, seconds=60, horizon=0)
        beat = Heartbeat(worker=name, crawl="c", host="vm", pid=pid, version="1", slots=1, machine=machine)
        await frontier.beat(beat)
    watcher = Coordinator(crawl, frontier=frontier, show=print, say=print)
    await watcher.reclaim_from_exited_workers()
    assert (await frontier.progress("c")).leased == 1
    assert [(await frontier.look_up("c", key)).worker for key in (1, 2)] == ["", "elsewhere"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="elsewhere it cannot be seen")
def test_a_process_whose_end_nobody_noticed_is_not_running() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert not is_running(process.pid)
    finally:
        process.communicate()
