"""Every kind of URL that shoal takes, in one list: which seam it belongs to, what implements it, and which extra it
needs. Help, messages, checks and documents are made from this list. A new backend is a row here."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, Literal

import msgspec

from shoal.errors import UsageError
from shoal.version import install_command

Seam = Literal["frontier", "store", "archive", "sink", "pipe"]


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of URL. `loads` is the class, as "module:Class"; `drivers` are the packages that `extra` installs."""

    seam: Seam
    name: str
    schemes: tuple[str, ...]
    example: str
    loads: str
    extra: str = ""
    drivers: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The name by which a URL of a sink knows its backend."""
        return self.extra or self.name


_REDIS: Final = ("redis", "hiredis")
_RABBITMQ: Final = ("aiormq", "pamqp", "yarl")
_SQS: Final = ("aiobotocore", "botocore", "aiohttp")

BACKENDS: Final = (
    Backend(
        seam="frontier",
        name="SQLite",
        schemes=("sqlite",),
        example="shoal.db",
        loads="shoal.frontier.sqlite.frontier:SqliteFrontier",
    ),
    Backend(
        seam="frontier",
        name="Redis",
        schemes=("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"),
        example="redis://host/0",
        loads="shoal.frontier.redis.frontier:RedisFrontier",
        extra="redis",
        drivers=_REDIS,
    ),
    Backend(
        seam="frontier",
        name="pipe",
        schemes=("amqp", "amqps", "sqs"),
        example="amqp://host?prefix=shoal",
        loads="shoal.pipes.frontier:PipedFrontier",
    ),
    Backend(
        seam="store",
        name="SQLite",
        schemes=("sqlite",),
        example="shoal.db",
        loads="shoal.store.sqlite.store:SqliteStore",
    ),
    Backend(
        seam="store",
        name="files",
        schemes=("files",),
        example="files:DIR",
        loads="shoal.store.files.store:FilesStore",
    ),
    Backend(
        seam="store",
        name="PostgreSQL",
        schemes=("postgresql", "postgres"),
        example="postgresql://user@host/database",
        loads="shoal.store.postgres.store:PostgresStore",
        extra="postgres",
        drivers=("asyncpg",),
    ),
    Backend(
        seam="archive",
        name="a folder or a bucket",
        schemes=("file", "s3", "gs", "az"),
        example="s3://bucket/prefix",
        loads="shoal.archive.objects:ObjectArchive",
        extra="archive",
        drivers=("obstore",),
    ),
    Backend(
        seam="sink",
        name="file",
        schemes=("file",),
        example="a path that ends in .jsonl",
        loads="shoal.sinks.jsonl:FileSink",
    ),
    Backend(
        seam="sink",
        name="webhook",
        schemes=("http", "https"),
        example="https://…",
        loads="shoal.sinks.webhook:WebhookSink",
    ),
    Backend(
        seam="sink",
        name="Redis",
        schemes=("redis", "rediss", "unix"),
        example="redis://host/0?list=NAME or ?stream=NAME",
        loads="shoal.sinks.redis:RedisSink",
        extra="redis",
        drivers=_REDIS,
    ),
    Backend(
        seam="sink",
        name="RabbitMQ",
        schemes=("amqp", "amqps"),
        example="amqp://host/?exchange=NAME",
        loads="shoal.sinks.rabbitmq:AmqpSink",
        extra="amqp",
        drivers=_RABBITMQ,
    ),
    Backend(
        seam="sink",
        name="SQS",
        schemes=("sqs",),
        example="sqs://QUEUE?region=NAME",
        loads="shoal.sinks.sqs:SqsSink",
        extra="sqs",
        drivers=_SQS,
    ),
    Backend(
        seam="pipe",
        name="RabbitMQ",
        schemes=("amqp", "amqps"),
        example="amqp://user@host:5672/vhost?prefix=shoal",
        loads="shoal.pipes.rabbitmq:RabbitPipe",
        extra="amqp",
        drivers=_RABBITMQ,
    ),
    Backend(
        seam="pipe",
        name="SQS",
        schemes=("sqs",),
        example="sqs://prefix?region=NAME",
        loads="shoal.pipes.sqs:SqsPipe",
        extra="sqs",
        drivers=_SQS,
    ),
)


def scheme_of(url: str) -> str:
    """The scheme of a URL; empty for a path."""
    scheme, separator, _ = url.partition("://")
    return scheme if separator else ""


def schemes_of(seam: Seam, name: str = "") -> tuple[str, ...]:
    """The schemes of a seam's URLs, or of one of its backends."""
    return tuple(scheme for one in BACKENDS if one.seam == seam and name in ("", one.name) for scheme in one.schemes)


def backend_of(seam: Seam, scheme: str) -> Backend | None:
    """The backend that this scheme names; None if there is none."""
    return next((one for one in BACKENDS if one.seam == seam and scheme in one.schemes), None)


def load(backend: Backend | None, *, scheme: str = "") -> Any:
    """The backend's class. A missing driver is one line with the command that installs it."""
    if backend is None:
        raise UsageError(f"shoal knows no {scheme}://")
    module, _, name = backend.loads.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in backend.drivers:
            raise
        what = f"{scheme or backend.schemes[0]}://" if backend.seam != "archive" else "an archive"
        raise UsageError(f"{what} needs its driver: {install_command(backend.extra)}") from None


def is_pipe(url: str) -> bool:
    """Whether a URL has the scheme of a pipe."""
    return scheme_of(url) in schemes_of("pipe")


def is_redis(url: str) -> bool:
    """Whether a URL is that of a frontier in Redis."""
    return scheme_of(url) in schemes_of("frontier", "Redis")
