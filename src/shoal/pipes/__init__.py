"""Pipes: queues of a broker between workers and their coordinator. `open_pipe` picks the broker by the URL's scheme."""

from __future__ import annotations

from typing import Final

from shoal.errors import UsageError
from shoal.pipes.base import Pipe
from shoal.text.secrets import visible_origin

RABBITMQ_SCHEMES: Final = ("amqp", "amqps")
PIPE_SCHEMES: Final = (*RABBITMQ_SCHEMES, "sqs")


def is_pipe(url: str) -> bool:
    """Whether a URL has the scheme of a pipe."""
    scheme, separator, _ = url.partition("://")
    return bool(separator) and scheme in PIPE_SCHEMES


def open_pipe(url: str) -> Pipe:
    """The pipe at this URL: `amqp://user:password@host:5672/vhost?prefix=shoal`, `amqps://…` with TLS, or
    `sqs://prefix?region=eu-central-1`. Nothing is connected yet."""
    scheme, separator, _ = url.partition("://")
    match scheme if separator else "":
        case name if name in RABBITMQ_SCHEMES:
            try:
                from shoal.pipes.rabbitmq import RabbitPipe
            except ModuleNotFoundError as error:
                if error.name not in ("aiormq", "pamqp", "yarl"):
                    raise
                raise UsageError(f"{scheme}:// needs the aiormq library: pip install 'shoal[amqp]'") from None
            return RabbitPipe(url)
        case "sqs":
            try:
                from shoal.pipes.sqs import SqsPipe
            except ModuleNotFoundError as error:
                if error.name not in ("aiobotocore", "botocore", "aiohttp"):
                    raise
                raise UsageError("sqs:// needs the aiobotocore library: pip install 'shoal[sqs]'") from None
            return SqsPipe(url)
        case _:
            known = ", ".join(f"{name}://" for name in PIPE_SCHEMES)
            raise UsageError(f"no pipe for {visible_origin(url)}: use one of {known}")
