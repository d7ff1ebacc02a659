"""How a request leaves through one exit: a proxy, a gateway or an account, with its secrets."""

from __future__ import annotations

import re
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec

TARGET: Final = "{url}"  # stands for the page's URL in a gateway's template
# A word behind a gateway's host is a key if its name says so, or if it is long and has digits. Others are options.
_KEY: Final = re.compile(
    r"[^=]*(?:key|token|secret|pass|auth|sign|credential)[^=]*=.{4,}|(?:[^=]*=)?(?=[^=]*\d)[^=]{12,}", re.IGNORECASE
)


class ExitConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a request leaves through one exit.

    `url` is a proxy's URL, a gateway's template, or the proxy that an account is pinned to, if any. `fields` are what
    an account's login gets. An answer with one of a gateway's `error_statuses` comes from the gateway itself; only with
    `forwards_secrets` does the gateway get Authorization and Cookie."""

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
    """The secrets of an exit: its password, the fields of an account's login, the key of a gateway."""
    fields = [value for name, value in config.fields.items() if name != "name"]
    parts = urlsplit(config.url.replace(TARGET, ""))
    # Some services take their key as the user name, without a password.
    password = unquote(parts.password or parts.username or "")
    behind = re.split("[/&;]", f"{parts.path}&{parts.query}") if config.kind == "gateway" else []
    keys = [unquote(word.rpartition("=")[2]) for word in behind if _KEY.fullmatch(word)]
    return [*fields, *([password] if password else []), *keys]
