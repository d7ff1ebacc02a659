"""The processor time of a PostgreSQL server: of all its processes, also those of sessions that have ended."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from bench.idle import children, cpu_seconds
from shoal.testing.servers.postgres_server import PostgresServer


def postgres_cpu_seconds(server: PostgresServer) -> float:
    pid = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
    living = 0.0
    for child in children(pid):
        # A session that ends meanwhile is counted below, among those that have ended.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            living += cpu_seconds(child)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    return living + ended + cpu_seconds(pid)
