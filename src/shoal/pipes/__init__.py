"""Pipes: queues of a broker between workers and their coordinator. `open_pipe` picks the broker by the URL's scheme."""

from __future__ import annotations

from shoal.backends import backend_of, load, scheme_of, schemes_of
from shoal.errors import UsageError
from shoal.pipes.base import Pipe
from shoal.text.secrets import visible_origin


def open_pipe(url: str) -> Pipe:
    """The pipe at this URL: `amqp://user:password@host:5672/vhost?prefix=shoal`, `amqps://…` with TLS, or
    `sqs://prefix?region=eu-central-1`. Nothing is connected yet."""
    scheme = scheme_of(url)
    backend = backend_of("pipe", scheme)
    if backend is None:
        known = ", ".join(f"{name}://" for name in schemes_of("pipe"))
        raise UsageError(f"no pipe for {visible_origin(url)}: use one of {known}")
    pipe: Pipe = load(backend, scheme=scheme)(url)
    return pipe
