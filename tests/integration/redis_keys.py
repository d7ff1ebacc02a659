"""What a Redis server was asked to write: the keys that scripts and clients wrote, as MONITOR shows them."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from shoal.frontier.redis.scripts import LuaFolder
from shoal.testing.servers.redis_server import RedisServer

CLIENTS = "clients"  # who writes without a script
SECONDS = 20.0

_LINE = re.compile(r"^\+\d+\.\d+ \[\d+ (?P<source>[^]]*)\] (?P<command>.*)$")
_ARGUMENT = re.compile(r'"((?:[^"\\]|\\.)*)"')
# Commands that write, and how many of their arguments are keys; all: every one.
_ALL = -1
_WRITES = {
    "DEL": _ALL, "EXPIRE": 1, "HDEL": 1, "HINCRBY": 1, "HINCRBYFLOAT": 1, "HSET": 1, "HSETNX": 1, "INCR": 1, "LPUSH": 1,
    "PEXPIRE": 1, "RPOPLPUSH": 2, "SADD": 1, "SET": 1, "SETBIT": 1, "SREM": 1, "UNLINK": _ALL, "ZADD": 1, "ZREM": 1,
    "ZREMRANGEBYRANK": 1, "ZREMRANGEBYSCORE": 1,
}  # fmt: skip
_READS = {
    "CONFIG", "EVAL", "EVALSHA", "EXISTS", "GET", "GETBIT", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET",
    "HSCAN", "HSTRLEN", "INFO", "KEYS", "LLEN", "LRANGE", "PING", "ROLE", "SCARD", "SCRIPT", "SISMEMBER", "SMEMBERS",
    "TIME", "TYPE", "ZCARD", "ZCOUNT", "ZRANGE", "ZRANGEBYSCORE", "ZREVRANGE", "ZREVRANGEBYSCORE", "ZSCAN", "ZSCORE",
    "BGREWRITEAOF", "CLIENT",
}  # fmt: skip


@contextmanager
def watched(server: RedisServer) -> Iterator[set[tuple[str, str]]]:
    """A set that is filled at the end: which verb, or clients, wrote which key."""
    written: set[tuple[str, str]] = set()
    with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as connection:
        connection.sendall(b"MONITOR\r\n")
        with connection.makefile("r", encoding="utf-8", newline="\r\n") as lines:
            assert lines.readline().startswith("+OK")
            yield written
            connection.sendall(b"QUIT\r\n")
            written |= set(_writes(iter(lines.readline, "")))


def _writes(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    verbs = {script.sha: verb for verb, script in LuaFolder().scripts().items()}
    verbs |= {script.text: verb for verb, script in LuaFolder().scripts().items()}
    writer: str | None = CLIENTS
    for line in lines:
        shown = _LINE.match(line.rstrip("\r\n"))
        if shown is None:
            return
        name, *args = map(_unquoted, _ARGUMENT.findall(shown["command"]))
        if shown["source"] != "lua":
            # A script that is no verb is the test's own.
            writer = verbs.get(args[0]) if name in ("EVAL", "EVALSHA") else CLIENTS
        total = _WRITES.get(name.upper())
        if total is None:
            assert name.upper() in _READS, f"is {name} a command that writes?"
            continue
        for key in args if total == _ALL else args[:total]:
            if writer is not None:
                yield writer, key


def _unquoted(text: str) -> str:
    return text.encode("latin-1", "replace").decode("unicode_escape").encode("latin-1").decode("utf-8", "replace")
