"""Puts the parts together: the only place that knows which class keeps which contract."""

from __future__ import annotations

from shoal.run.building import fleet_for, replay_for, worker_for
from shoal.run.intakes import coordinating, intake_of, listener_at, settings_of
from shoal.run.running import WorkPlace, run_crawl

__all__ = [
    "WorkPlace",
    "coordinating",
    "fleet_for",
    "intake_of",
    "listener_at",
    "replay_for",
    "run_crawl",
    "settings_of",
    "worker_for",
]
