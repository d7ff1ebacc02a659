"""Crawlee's Redis storage on a Redis server older than 8, which has no JSON commands; imported by crawlee_crawl.py.

Crawlee keeps a small JSON document per storage (times and counters) and a JSON array per dataset. On a server without
these commands they become a hash and a list: native commands, which cost the server and the client less than JSON does,
so that Crawlee loses nothing by it. On Redis 8 and later Crawlee's own commands are used.
"""

import json

import redis
from crawlee.storage_clients import RedisStorageClient
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

JSON_SINCE = 8


def redis_storage(url):
    with redis.Redis.from_url(url) as client:
        version = int(client.info("server")["redis_version"].partition(".")[0])
    kind = Redis if version >= JSON_SINCE else PlainRedis
    return RedisStorageClient(redis=kind.from_url(url))


class PlainJson:
    """The JSON commands that Crawlee uses, with hashes and lists."""

    def __init__(self, client):
        self._client = client

    def set(self, key, path, value, **_):
        if value == []:
            return self._client.delete(key)
        fields = value if path == "$" else {path.removeprefix("$."): value}
        return self._client.hset(key, mapping={name: json.dumps(field) for name, field in fields.items()})

    def numincrby(self, key, path, number):
        return self._client.hincrby(key, path.removeprefix("$."), number)

    def arrappend(self, key, _path, *items):
        return self._client.rpush(key, *[json.dumps(item) for item in items])

    async def get(self, key, path="$"):
        """The whole document, or a slice `$[FIRST:END]` of an array."""
        if path.startswith("$["):
            first, end = path.removeprefix("$[").removesuffix("]").split(":")
            return [json.loads(item) for item in await self._client.lrange(key, int(first), int(end) - 1)]
        fields = await self._client.hgetall(key)
        return {name.decode(): json.loads(field) for name, field in fields.items()} or None


class PlainPipeline(Pipeline):
    def json(self, **_):
        return PlainJson(self)


class PlainRedis(Redis):
    def json(self, **_):
        return PlainJson(self)

    def pipeline(self, transaction=True, shard_hint=None):
        return PlainPipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
