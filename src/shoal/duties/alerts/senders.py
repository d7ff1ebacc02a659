"""Sends an alert to one target: a webhook, Slack, a mail server or a command. Raises NotSent with the reason."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import smtplib
import socket
import ssl
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Any, Final

import msgspec
from pyreqwest.client import ClientBuilder

from shoal.duties.alerts.config import Target
from shoal.duties.alerts.state import Message
from shoal.logs import escaped
from shoal.text.errors import line_of
from shoal.text.secrets import without

SECONDS: Final = 15.0
COMMAND_SECONDS: Final = 30.0
LONGEST_REASON: Final = 200
MOST_OUTPUT: Final = 4_000
_SLACK_MARKS: Final = {"firing": ":red_circle:", "over": ":large_green_circle:", "test": ":white_circle:"}
_SLACK_TEXT: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class NotSent(Exception):  # noqa: N818 -- reads as what happened
    """The message could not be sent; the text says why, without secrets."""


async def send(target: Target, message: Message) -> None:
    """Send a message to a target; returns when the target has accepted it."""
    try:
        match target.kind:
            case "webhook":
                await _post(target, document_of(message))
            case "slack":
                await _post(target, {"text": slack_text(message)})
            case "email":
                await asyncio.to_thread(_mail, target, message)
            case "command":
                await _run(target, message)
    except NotSent:
        raise
    except Exception as error:
        # Any error of a server, a name or a file: the other targets must get their messages all the same.
        raise NotSent(_reason(target, line_of(error))) from None


def document_of(message: Message) -> dict[str, Any]:
    """The message as webhooks and commands get it."""
    return {**msgspec.to_builtins(message), "line": message.line, "host": socket.gethostname()}


def slack_text(message: Message) -> str:
    """The message for Slack, escaped so that nothing in it becomes a link or a mention."""
    text = message.line.translate(_SLACK_TEXT)
    return f"{_SLACK_MARKS[message.state]} shoal {message.alert}: {text}"


def environment_of(message: Message, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a command: our own, and the message. Not SHOAL_…: those are settings."""
    own = {"ALERT": message.alert, "ALERT_STATE": message.state, "ALERT_CRAWL": message.crawl}
    return {**environ, **own, "ALERT_ABOUT": message.about, "ALERT_TEXT": message.line, "ALERT_ID": message.id}


async def _post(target: Target, document: Mapping[str, Any]) -> None:
    # No redirects: they would send the message and its secrets to another place.
    builder = ClientBuilder().timeout(timedelta(seconds=SECONDS)).follow_redirects(False)
    async with builder.build() as client, asyncio.timeout(SECONDS + 1):
        request = client.post(target.url).headers({"Content-Type": "application/json", **target.headers})
        response = await request.body_bytes(msgspec.json.encode(document)).build().send()
        if not 200 <= response.status < 300:
            raise NotSent(_reason(target, f"it answered {response.status}"))


def _mail(target: Target, message: Message) -> None:
    mail = EmailMessage()
    mail["Subject"] = escaped(f"[shoal] {message.line}")[:LONGEST_REASON]
    mail["From"], mail["To"] = target.sender, ", ".join(target.addresses)
    mail["Date"], mail["Message-ID"] = formatdate(localtime=True), make_msgid(domain="shoal.invalid")
    mail.set_content(_mail_text(message))
    context = ssl.create_default_context()
    if target.tls == "ssl":
        server: smtplib.SMTP = smtplib.SMTP_SSL(target.smtp_host, target.smtp_port, timeout=SECONDS, context=context)
    else:
        server = smtplib.SMTP(target.smtp_host, target.smtp_port, timeout=SECONDS)
    with server:
        if target.tls == "starttls":
            server.starttls(context=context)
        if target.user:
            server.login(target.user, target.password)
        server.send_message(mail)


def _mail_text(message: Message) -> str:
    rows = [
        ("alert", message.alert),
        ("state", message.state),
        ("crawl", message.crawl),
        ("about", message.about),
        ("since", message.since),
        ("at", message.at),
        ("host", socket.gethostname()),
    ]
    table = "\n".join(f"{name:6} {escaped(value)}" for name, value in rows if value)
    return f"{escaped(message.line)}\n\n{table}\n"


async def _run(target: Target, message: Message) -> None:
    """Run the command without a shell: the text of an alert is data."""
    environ = {name: value.replace("\0", "") for name, value in environment_of(message, os.environ).items()}
    with tempfile.TemporaryFile() as given:
        # Not a pipe: writing to a command that ends without reading would fail.
        given.write(json.dumps(document_of(message)).encode() + b"\n")
        given.seek(0)
        process = await asyncio.create_subprocess_exec(
            *target.command,
            env=environ,
            stdin=given,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    try:
        async with asyncio.timeout(COMMAND_SECONDS):
            _, errors = await process.communicate()
    except TimeoutError:
        raise NotSent(f"the command took longer than {COMMAND_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        lines = errors[-MOST_OUTPUT:].decode(errors="replace").strip().splitlines()
        said = f": {lines[-1]}" if lines else ""
        raise NotSent(_reason(target, f"the command ended with {process.returncode}{said}"))


def _reason(target: Target, text: str) -> str:
    secrets = [target.password, target.url, *target.headers.values()]
    return escaped(without([one for one in secrets if one], text))[:LONGEST_REASON]
