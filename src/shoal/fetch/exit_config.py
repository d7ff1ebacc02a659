"""How a request leaves through one exit: a proxy, a gateway or an account, with its secrets."""

from __future__ import annotations

import re
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec

TARGET: Final = "{url}"  # where a gateway's template wants the page's URL
# Among the words behind a gateway's host: named as one, or with digits as only keys have them. Others are options.
_KEY: Final = re.compile(
    r"[^=]*(?:key|token|secret|pass|auth|sign|credential)[^=]*=.{4,}|(?:[^=]*=)?(?=[^=]*\d)[^=]{12,}", re.IGNORECASE
)


class ExitConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a request leaves through one exit.

    `url` is a proxy's URL, a gateway's template, or the proxy that an account is pinned to, if any. `fields` is what
    an account's login is given. A gateway's `error_statuses` are its own; only with `forwards_secrets` does it see
    Authorization and Cookie."""

    name: str
    kind: Literal["proxy", "gateway", "account"]
    url: str = ""
    user_agent: str = ""
    fields: dict[str, str] = msgspec.field(default_factory=dict)
    error_statuses: tuple[int, ...] = ()
    forwards_secrets: bool = False

    def __repr__(self) -> str:
        return f"<ExitConfig {self.name}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("name", self.name)]


def secrets_of(config: ExitConfig) -> list[str]:
    """What of an exit nobody may read: its password, what an account logs in with, the key of a gateway."""
    fields = [value for name, value in config.fields.items() if name != "name"]
    parts = urlsplit(config.url.replace(TARGET, ""))
    # Some services want their key as the user's name, and no password.
    password = unquote(parts.password or parts.username or "")
    behind = re.split("[/&;]", f"{parts.path}&{parts.query}") if config.kind == "gateway" else []
    keys = [unquote(word.rpartition("=")[2]) for word in behind if _KEY.fullmatch(word)]
    return [*fields, *([password] if password else []), *keys]
