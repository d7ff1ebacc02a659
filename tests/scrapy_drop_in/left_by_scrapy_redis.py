"""What scrapy-redis leaves in Redis: by scrapy-redis itself, from a folder apart, or entry by entry in its forms."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from scrapy import Request
from scrapy.utils.request import fingerprint
from w3lib.url import canonicalize_url

from shoal.testing.servers.redis_server import RedisServer

SECONDS = 120.0
QUEUE, FILTER = "pages:requests", "pages:dupefilter"
PEERS = Path(sys.prefix) / "peers"


def newer(request: Request) -> str:
    """The fingerprint of scrapy-redis from 0.8 on, written down once more from what it does."""
    text = '{"body": "%s", "method": "%s", "url": %s}'
    url = json.dumps(canonicalize_url(request.url))
    return hashlib.sha1((text % (request.body.hex(), request.method, url)).encode()).hexdigest()


def older(request: Request) -> str:
    """The fingerprint of scrapy-redis before 0.8."""
    digest = hashlib.sha1(request.method.encode())
    digest.update(canonicalize_url(request.url).encode())
    digest.update(request.body)
    return digest.hexdigest()


def of_scrapy(request: Request) -> str:
    return fingerprint(request).hex()


def as_json(request: Request, **changes: Any) -> bytes:
    """A request as a serializer of JSON writes it: bytes as texts. `changes`: callbacks by name, and the like."""
    fields = request.to_dict() | changes
    fields["body"] = request.body.decode()
    headers = request.headers.items()
    fields["headers"] = {name.decode(): [value.decode() for value in values] for name, values in headers}
    return json.dumps(fields).encode()


def pickled(request: Request, **changes: Any) -> bytes:
    return pickle.dumps(request.to_dict() | changes, protocol=-1)


class Leftovers:
    """Fills the keys of the spider `pages`."""

    def __init__(self, server: RedisServer) -> None:
        self._client = Redis(port=server.port, protocol=2, driver_info=None)

    def push(self, *entries: bytes) -> None:
        """Into the list of a FIFO queue."""
        with self._client.pipeline() as pipe:
            for entry in entries:
                pipe.lpush(QUEUE, entry)
            pipe.execute()

    def rank(self, priority: int, entry: bytes) -> None:
        """Into the sorted set of a queue by priority."""
        self._client.zadd(QUEUE, {entry: -priority})

    def know(self, *requests: Request, by: Callable[[Request], str] = newer) -> None:
        for start in range(0, len(requests), 5000):
            self._client.sadd(FILTER, *(by(request) for request in requests[start : start + 5000]))

    def close(self) -> None:
        self._client.close()


def run_scrapy_redis(folder: Path, file: str, *arguments: str) -> str:
    """`scrapy runspider` where scrapy-redis can be imported; gives what was logged."""
    if not (PEERS / "scrapy_redis").is_dir():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("scrapy-redis is not installed: make dev")
    done = subprocess.run(
        [sys.executable, "-m", "scrapy", "runspider", file, *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(PEERS)}, text=True, timeout=SECONDS,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout
