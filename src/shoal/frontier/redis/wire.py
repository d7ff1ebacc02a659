"""The encoding of tasks, leases and results in Redis. Scripts read only the first bytes of a task."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any
from urllib.parse import unquote

import msgspec

from shoal.frontier.redis.connection import Argument
from shoal.frontier.redis.scripts import SEQUENCES, VERDICTS
from shoal.frontier.redis.shards import Shard
from shoal.frontier.rules.constants import LONGEST_WHY
from shoal.frontier.rules.hosts import OtherLane
from shoal.frontier.rules.tasks import bounded_priority, decoded
from shoal.model import DIRECT, HTTP, Crawl, DeadLetter, ExitUse, LaneUpdate, Pool, Render, Task, Visit

KEY = struct.Struct(">q")
_REPORT = struct.Struct(">ddB")
# Read by scripts: key, max_attempts, shape, flags. Then depth, parent, created; and the kind, if a flag is set.
_HEADER = struct.Struct(">qHqBHqd")
_LENGTH = struct.Struct(">I")
_LINK = struct.Struct(">HI3sB")  # before each task of a packet: label, length, low bits of the key, its digits
MAX_PACKET = 1_000_000  # bytes of tasks in one argument: the server limits the length of arguments
_HAS_PARENT, _HAS_EXTRAS, _HAS_KIND = 1, 2, 4
_MOST = 0xFFFF
_Label = tuple[str, int, float, bool, str, bool]


class _Extras(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The fields of a task that have their default in most tasks."""

    handler: str = msgspec.field(default="parse", name="h")
    priority: int = msgspec.field(default=0, name="p")
    delay: float = msgspec.field(default=0.0, name="d")
    method: str = msgspec.field(default="GET", name="m")
    headers: dict[str, str] | None = msgspec.field(default=None, name="e")
    body: bytes | None = msgspec.field(default=None, name="b")
    meta: dict[str, Any] | None = msgspec.field(default=None, name="t")
    pool: str = msgspec.field(default=DIRECT, name="o")
    hops: int = msgspec.field(default=0, name="r")
    merged: bool = msgspec.field(default=False, name="g")
    depth: int | None = msgspec.field(default=None, name="y")
    max_attempts: int | None = msgspec.field(default=None, name="a")
    visit: Visit | None = msgspec.field(default=None, name="v")
    render: Render | None = msgspec.field(default=None, name="w")
    hastens: bool = msgspec.field(default=False, name="n")


_USUAL = ("parse", 0, 0.0, "GET", None, None, None, DIRECT, 0, False, HTTP, None, None, False)
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Extras)


def encode_task(task: Task) -> bytes:
    """Encode a task without its lane. Raises ValueError or TypeError for a task that cannot be encoded."""
    unusual = (
        task.handler, task.priority, task.delay, task.method, task.headers, task.body, task.meta, task.pool, task.hops,
        task.merged, task.kind, task.visit, task.render, task.hastens,
    )  # fmt: skip
    depth, most, parent = task.depth, task.max_attempts, task.parent
    flags = 0 if parent is None else _HAS_PARENT
    try:
        if unusual == _USUAL and 0 <= depth <= _MOST and 0 <= most <= _MOST:
            header = _HEADER.pack(task.key, most, task.shape, flags, depth, parent or 0, task.created)
            return header + task.url.encode()
        extras = _encode_extras(task)
        depth, most = _clamped(depth), _clamped(most)
        kind = b"" if task.kind == HTTP else task.kind.encode()
        flags |= _HAS_EXTRAS | (_HAS_KIND if kind else 0)
        header = _HEADER.pack(task.key, most, task.shape, flags, depth, parent or 0, task.created)
        if kind:
            header += bytes([len(kind)]) + kind
    except (struct.error, AttributeError) as error:
        raise ValueError(f"a task for {task.url!r} cannot be kept: {error}") from None
    return header + _LENGTH.pack(len(extras)) + extras + task.url.encode()


def decode_task(data: bytes, lane: str, start: int = 0) -> Task:
    """Decode the task whose bytes begin at `start`."""
    key, most, shape, flags, depth, parent, created = _HEADER.unpack_from(data, start)
    at, kind = start + _HEADER.size, HTTP
    if flags & _HAS_KIND:
        at += 1 + data[at]
        kind = data[start + _HEADER.size + 1 : at].decode()
    extras = None
    if flags & _HAS_EXTRAS:
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + length
        extras = _DECODER.decode(data[at - length : at])
    url = data[at:].decode()
    origin = parent if flags & _HAS_PARENT else None
    if extras is None:
        return Task(
            url=url, key=key, lane=lane, depth=depth, max_attempts=most, parent=origin, created=created, shape=shape
        )
    return Task(
        url=url,
        key=key,
        lane=lane,
        handler=extras.handler,
        depth=depth if extras.depth is None else extras.depth,
        priority=extras.priority,
        delay=extras.delay,
        method=extras.method,
        headers=extras.headers,
        body=extras.body,
        meta=extras.meta,
        max_attempts=most if extras.max_attempts is None else extras.max_attempts,
        pool=extras.pool,
        parent=origin,
        created=created,
        hops=extras.hops,
        shape=shape,
        merged=extras.merged,
        kind=kind,
        visit=extras.visit,
        render=extras.render,
        hastens=extras.hastens,
    )


def _encode_extras(task: Task) -> bytes:
    extras = _Extras(
        handler=task.handler,
        priority=task.priority,
        delay=task.delay,
        method=task.method,
        headers=task.headers,
        body=task.body,
        meta=task.meta,
        pool=task.pool,
        hops=task.hops,
        merged=task.merged,
        visit=task.visit,
        render=task.render,
        hastens=task.hastens,
        depth=None if 0 <= task.depth <= _MOST else task.depth,
        max_attempts=None if 0 <= task.max_attempts <= _MOST else task.max_attempts,
    )
    return _ENCODER.encode(extras)


def _clamped(number: int) -> int:
    return max(0, min(number, _MOST))


def _packets(labels: Sequence[int], keys: Sequence[bytes], tasks: Sequence[bytes]) -> list[bytes]:
    """All tasks in one packet, or each in its own if they are large. The low bits of a key determine its bucket."""
    heads = map(_LINK.pack, labels, map(len, tasks), [task[5:8] for task in tasks], map(len, keys))
    entries = zip(heads, keys, tasks, strict=True)
    if sum(map(len, tasks)) > MAX_PACKET:
        return [b"".join(entry) for entry in entries]
    return [b"".join(chain.from_iterable(entries))]


class Batch:
    """The tasks of one script call: values that several tasks share are sent once, as a label."""

    def __init__(self, shard: Shard) -> None:
        self.tasks: list[Task] = []
        self._shard = shard
        self._labels: dict[_Label, int] = {}

    def encode(self, tasks: Sequence[Task]) -> list[Argument]:
        """Encode tasks as scripts read them: number of tasks, number of packets, packets. If one fails, none is
        added."""
        labels = self._labels
        known = len(labels)
        numbers: list[int] = []
        encoded: list[bytes] = []
        try:
            for task in tasks:
                label = (task.lane, task.priority, task.delay, task.merged, task.kind, task.hastens)
                number = labels.get(label)
                if number is None:
                    number = self._new_label(label)
                numbers += (number,)
                encoded += (encode_task(task),)
        except BaseException:
            for label in list(labels)[known:]:
                del labels[label]
            raise
        self.tasks += tasks
        packets = _packets(numbers, [b"%d" % task.key for task in tasks], encoded)
        return [len(tasks), len(packets), *packets]

    @property
    def labels(self) -> list[Argument]:
        """The arguments of the labels: their number, then each one."""
        args: list[Argument] = [len(self._labels)]
        for lane, priority, delay, merged, kind, hastens in self._labels:
            offset = -bounded_priority(priority) * SEQUENCES
            flags = int(merged) + (0 if self._shard.has(lane) else 2) + (4 if hastens else 0)
            args += (lane, offset, repr(float(delay)), flags, "" if kind == HTTP else kind)
        return args

    def _new_label(self, label: _Label) -> int:
        lane, priority, delay, merged, kind, _ = label
        lane.encode(), kind.encode()
        if not math.isfinite(delay) or not isinstance(priority, int) or not isinstance(merged, bool):
            raise ValueError(f"a task of {lane} cannot be kept: priority {priority!r}, delay {delay!r}")
        self._labels[label] = len(self._labels) + 1
        return self._labels[label]


def encode_update(update: LaneUpdate) -> list[Argument]:
    """The eight values of a lane's update; a ninth with `why`, a tenth with `learnt`."""
    rules: Argument = "" if update.rules is None else b"=" + update.rules
    why = [update.why[:LONGEST_WHY].encode()] if update.why or update.learnt is not None else []
    return [
        number(update.interval),
        number(update.if_interval),
        number(update.base_interval),
        "" if update.cap is None else int(update.cap),
        number(update.rest_seconds),
        rules,
        number(update.rules_seconds),
        number(update.started),
        *why,
        *([number(update.learnt)] if update.learnt is not None else ()),
    ]


def number(value: float | None) -> str:
    """A number as text without loss; "": None."""
    if value is None:
        return ""
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a number of seconds")
    return repr(float(value))


def encode_counts(counts: Mapping[str, int]) -> list[Argument]:
    """The number of counts, then name and count of each."""
    args: list[Argument] = [len(counts)]
    for name, count in counts.items():
        name.encode()
        args += (name, int(count))
    return args


_HELD = struct.Struct(">ddIHHIHHI")
_DEAD = struct.Struct(">ddIHII")
_TRIES = struct.Struct(">IHH")
_LATER = struct.Struct(">dH")
_OTHER = struct.Struct(">10d")


class HeldTask(msgspec.Struct, frozen=True):
    """A leased task as stored in Redis."""

    task: Task
    token: int
    attempts: int
    worker: str
    reason: str
    losses: int


def decode_held(data: bytes) -> HeldTask:
    token, _, attempts, losses, _, _, lane, worker, reason = _HELD.unpack_from(data)
    at = _HELD.size
    texts = _texts(data, at, (lane, worker, reason))
    task = decode_task(data, texts[0], at + lane + worker + reason)
    return HeldTask(task, abs(int(token)), attempts, texts[1], texts[2], losses)


def decode_dead(data: bytes) -> DeadLetter:
    died, _, attempts, lane, reason, detail = _DEAD.unpack_from(data)
    at = _DEAD.size
    texts = _texts(data, at, (lane, reason, detail))
    task = decode_task(data, texts[0], at + lane + reason + detail)
    return DeadLetter(task=task, reason=texts[1], detail=texts[2], attempts=attempts, at=died)


def decode_later(entry: bytes) -> Task:
    """Decode a delayed task."""
    _, length = _LATER.unpack_from(entry)
    at = _LATER.size
    return decode_task(entry, entry[at : at + length].decode(), at + length)


def decode_tries(data: bytes) -> tuple[int, int, str]:
    """Attempts, losses and reason of a task that was leased before."""
    if not data:
        return 0, 0, ""
    attempts, losses, _ = _TRIES.unpack_from(data)
    return attempts, losses, data[_TRIES.size :].decode()


def decode_crawl(fields: Mapping[bytes, bytes]) -> Crawl:
    finished = fields.get(b"finished")
    return msgspec.convert(
        {
            "id": fields[b"id"].decode(),
            "spider": fields[b"spider"].decode(),
            "state": fields[b"state"].decode(),
            "interval": _number_in(fields, b"interval", 1.0),
            "cap": int(_number_in(fields, b"cap", 8)),
            "needs_rules": fields.get(b"needs_rules") == b"1",
            "budgets": {
                **{name: int(_number_in(fields, name.encode(), 0)) for name in ("pages", "per_lane", "per_shape")},
                "cost": _number_in(fields, b"max_cost", 0.0),
            },
            "pools": msgspec.json.decode(fields.get(b"pools", b"[]")),
            "limits": decoded(fields.get(b"limits", b"")),
            "settings": msgspec.json.decode(fields[b"settings"]),
            "feeding": fields.get(b"feeding") == b"1",
            "created": _number_in(fields, b"created", 0.0),
            "dedup": fields.get(b"dedup", b"exact").decode(),
            "dedup_ttl": _number_in(fields, b"dedup_ttl", 0.0),
            "finished": None if finished is None else _number_in(fields, b"finished", 0.0),
            "keys": fields.get(b"keys", b"known").decode(),
            "pace_scope": fields.get(b"pace_scope", b"host").decode(),
            "weight": _number_in(fields, b"weight", 1.0),
            "fastest": _number_in(fields, b"fastest", 0.0),
        },
        Crawl,
    )


def _number_in(fields: Mapping[bytes, bytes], name: bytes, otherwise: float) -> float:
    """A field as number; `otherwise` if it is missing or damaged, as `Mend` does."""
    try:
        value = float(fields.get(name, otherwise))
    except ValueError:
        return otherwise
    return value if math.isfinite(value) else otherwise


def decode_other(data: bytes) -> tuple[str, OtherLane]:
    """A crawl and its lane, from the other crawls' lanes in an answer of `busy`."""
    *numbers, turn, wants_until, heeded_until = _OTHER.unpack_from(data)
    last_start, blocked_until, interval, base_interval, cap, in_flight, opener = numbers
    crawl = unquote(data[_OTHER.size :].decode())
    return crawl, OtherLane(
        last_start, blocked_until, interval, base_interval, int(cap), int(in_flight), int(opener), turn, wants_until,
        heeded_until,
    )  # fmt: skip


def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """A flat answer of names and values as a dict."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _texts(data: bytes, at: int, lengths: Sequence[int]) -> list[str]:
    texts = []
    for length in lengths:
        texts.append(data[at : at + length].decode())
        at += length
    return texts


def encode_pools(pools: tuple[Pool, ...]) -> list[Argument]:
    """Pools as arguments of the script `pools`."""
    return [msgspec.json.encode(pools), *encode_limits(pools)]


def encode_limits(pools: Sequence[Pool]) -> list[Argument]:
    """Pools with limits and exits, as arguments of scripts."""
    args: list[Argument] = []
    for pool in pools:
        args += (
            pool.name, len(pool.exits), number(pool.interval), pool.cap, number(pool.host_interval), pool.host_cap,
            int(pool.exclusive), int(pool.sticky), number(pool.rotate), number(pool.quarantine),
            number(pool.max_quarantine), number(pool.patience), number(pool.cost), number(pool.cost_per_gb),
            *pool.exits,
        )  # fmt: skip
    return args


def encode_use(use: ExitUse | None) -> bytes:
    """The report on an exit, as argument of the script `settle`."""
    if use is None:
        return b""
    report = _REPORT.pack(use.size, use.elapsed, VERDICTS.index(use.verdict))
    return report if use.session is None else report + b"=" + use.session


def encode_offers(offers: Sequence[Pool]) -> str:
    """The exits that a worker offers, as argument of the scripts `lease` and `lend`."""
    return "".join("\n".join((pool.name, *pool.exits)) + "\n\n" for pool in offers)
