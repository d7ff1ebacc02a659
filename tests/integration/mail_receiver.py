"""A real mail server on loopback that keeps every mail it takes."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword


class Mails:
    """What has come in; `logins` are the users and passwords that were given."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.logins: list[tuple[str, str]] = []
        self.port = 0

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 -- aiosmtpd's name
        mail = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        return "250 OK"

    def authenticate(self, server: Any, session: Any, envelope: Any, mechanism: str, given: Any) -> AuthResult:
        assert isinstance(given, LoginPassword)
        self.logins.append((given.login.decode(), given.password.decode()))
        return AuthResult(success=given.password == b"hunter2")


@contextmanager
def mail_receiver(*, certificate: ssl.SSLContext | None = None) -> Iterator[Mails]:
    """A mail server on a free port; with a certificate it wants STARTTLS and a login."""
    mails = Mails()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        mails.port = free.getsockname()[1]
    options: dict[str, Any] = {}
    if certificate is not None:
        options = {"tls_context": certificate, "require_starttls": True, "auth_required": True}
        options["authenticator"] = mails.authenticate
    controller = Controller(mails, hostname="127.0.0.1", port=mails.port, **options)
    controller.start()
    try:
        yield mails
    finally:
        controller.stop()
