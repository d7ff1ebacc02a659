"""Messages to a webhook: signed POSTs of JSON arrays of bounded length and size."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
from pyreqwest.client import Client, ClientBuilder

from shoal.errors import ServerUnreachable, ShoalError, UsageError
from shoal.settings.table import WEBHOOK_VARIABLE
from shoal.sinks.base import Message
from shoal.sinks.urls import SinkUrl
from shoal.text.secrets import without

MOST = 100
BODY_BYTES = 1024 * 1024
SECONDS = 15.0
LONGEST_REASON = 200
OWN_OPTIONS = ("secret_env", "secret_file", "unsigned")
TIMESTAMP_HEADER = "Shoal-Timestamp"
SIGNATURE_HEADER = "Shoal-Signature"
# Client errors that a later try may not have: timeout, too early, too many requests.
_PASSING = (408, 425, 429)


class WebhookSink:
    """Delivers a batch in one or more POSTs; each must be answered with 2xx."""

    most = MOST

    def __init__(self, url: SinkUrl, *, environ: Mapping[str, str], clock: Callable[[], float] = time.time) -> None:
        self._shown = url.shown
        self._secret = _secret_of(url, environ)
        self._hidden = [url.password, *url.options.values(), (self._secret or b"").decode()]
        self._url = url.whole()
        self._clock = clock
        self._client: Client | None = None

    async def check(self) -> None:
        """Nothing to check: only a message shows whether a webhook takes messages."""

    async def deliver(self, messages: Sequence[Message]) -> None:
        """Send the messages in as few POSTs as their sizes allow."""
        for body in bodies_of(messages):
            await self._post(body)

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _post(self, body: bytes) -> None:
        stamp = str(int(self._clock()))
        headers = {"Content-Type": "application/json", TIMESTAMP_HEADER: stamp}
        if self._secret is not None:
            headers[SIGNATURE_HEADER] = signature_of(body, secret=self._secret, timestamp=stamp)
        try:
            if self._client is None:
                # No redirects: they would send the items to another place.
                self._client = ClientBuilder().timeout(timedelta(seconds=SECONDS)).follow_redirects(False).build()
            async with asyncio.timeout(SECONDS + 1):
                response = await self._client.post(self._url).headers(headers).body_bytes(body).build().send()
        except ShoalError:
            raise
        except Exception as error:
            # Errors of DNS, TLS and HTTP: whatever they are, the pump tries again.
            text = without(filter(None, self._hidden), " ".join(f"{type(error).__name__}: {error}".split()))
            raise ServerUnreachable(f"cannot reach the webhook {self._shown}: {text[:LONGEST_REASON]}") from None
        status = response.status
        if 200 <= status < 300:
            return
        if 400 <= status < 500 and status not in _PASSING:
            hint = "check its secret" if status in (401, 403) else "check its URL and what it takes"
            raise UsageError(f"the webhook {self._shown} refuses messages with {status}: {hint}")
        raise ServerUnreachable(f"the webhook {self._shown} answered {status}")


def signature_of(body: bytes, *, secret: bytes, timestamp: str) -> str:
    """The signature header: `v1=` and the HMAC-SHA256 of timestamp, dot and body in hex."""
    return "v1=" + hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def bodies_of(messages: Sequence[Message]) -> Iterator[bytes]:
    """JSON arrays of the messages, each of at most BODY_BYTES if no single message is larger."""
    texts: list[bytes] = []
    size = 0
    for message in messages:
        text = msgspec.json.encode(message)
        if texts and size + len(text) > BODY_BYTES:
            yield b"[" + b",".join(texts) + b"]"
            texts, size = [], 0
        texts.append(text)
        size += len(text) + 1
    if texts:
        yield b"[" + b",".join(texts) + b"]"


def _secret_of(url: SinkUrl, environ: Mapping[str, str]) -> bytes | None:
    """The secret from the variable or file that the URL names after #; None: #unsigned."""
    tail = url.tail
    for name in tail:
        if name not in OWN_OPTIONS:
            raise UsageError(
                f"the sink {url.shown} has an unknown option {name!r} behind #: known are {', '.join(OWN_OPTIONS)}"
            )
    if "unsigned" in tail:
        return None
    if file := tail.get("secret_file"):
        try:
            secret = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the secret of the webhook {url.shown} cannot be read from {file}: {error}") from None
    else:
        secret = environ.get(tail.get("secret_env") or WEBHOOK_VARIABLE, "")
    if not secret:
        where = tail.get("secret_file") or tail.get("secret_env") or WEBHOOK_VARIABLE
        raise UsageError(
            f"the webhook {url.shown} needs a secret to sign messages with, and {where} has none: set it, or end the"
            " URL with #secret_env=NAME, #secret_file=PATH or #unsigned"
        )
    return secret.encode()
