"""How much of its processor a server left unused during a run: a server that was busy all the time was the limit."""

from __future__ import annotations

import os
import time
from pathlib import Path

BUSY_BELOW = 0.2


class ServerWatch:
    """Watches a server from now on: the processor time of the process and of its children.

    `processes`: how many of them work, so that this many cores are what it could use."""

    def __init__(self, pid: int, *, processes: int = 1) -> None:
        self._pids = [pid, *children(pid)]
        self._processes = processes
        self._started = time.perf_counter()
        self._cpu_before = self._cpu()

    def idle_share(self) -> float:
        """The share of its cores that it has not used since the watch began."""
        return idle_share(self.cpu_seconds(), seconds=(time.perf_counter() - self._started) * self._processes)

    def cpu_seconds(self) -> float:
        return self._cpu() - self._cpu_before

    def _cpu(self) -> float:
        return sum(map(cpu_seconds, self._pids))


def idle_share(cpu: float, *, seconds: float) -> float:
    return max(0.0, 1.0 - cpu / seconds) if seconds > 0 else 1.0


def busy_note(name: str, idle: float) -> list[str]:
    """The note for a run whose server was (nearly) the limit, or none."""
    if idle >= BUSY_BELOW:
        return []
    return [f"{name}: the server was idle for {idle:.0%} of the time only, so it was (nearly) the limit"]


def cpu_seconds(pid: int) -> float:
    """The processor time that a process has used so far, itself alone."""
    # The name, in brackets, may hold spaces: the fields are counted from its end.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
