"""Builds and runs crawls: workers, fleets, coordinators."""

from __future__ import annotations

from shoal.run.building import fleet_for, replay_for, worker_for
from shoal.run.intakes import coordinating, intake_of, listener_at, settings_of
from shoal.run.running import run_crawl

__all__ = [
    "coordinating",
    "fleet_for",
    "intake_of",
    "listener_at",
    "replay_for",
    "run_crawl",
    "settings_of",
    "worker_for",
]
