"""Parses the URL of a sink: its kind, its options, and its form without secrets."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import msgspec

from shoal.backends import BACKENDS
from shoal.errors import UsageError
from shoal.text.secrets import masked

STDOUT = "-"
FILE_ENDINGS = (".jsonl", ".ndjson")
KINDS = {scheme: one.kind for one in BACKENDS if one.seam == "sink" for scheme in one.schemes}
FORMS = ", ".join(one.example for one in BACKENDS if one.seam == "sink") + ", or - for standard output"

_URL = re.compile(
    r"(?P<scheme>[a-z0-9+]+)://(?P<netloc>[^/?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?(?:#(?P<tail>.*))?"
)
_SECRET = re.compile("password|passwd|secret|token|credential|signature", re.IGNORECASE)
_SECRET_OF_PAGE = re.compile(rf"{_SECRET.pattern}|key|sig$|pwd|auth|code", re.IGNORECASE)


class SinkUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed URL. `kind` is one of KINDS' values, or stdout."""

    kind: str
    scheme: str = ""
    user: str = ""
    password: str = ""
    host: str = ""  # with its port
    path: str = ""
    options: dict[str, str] = msgspec.field(default_factory=dict)
    tail: dict[str, str] = msgspec.field(default_factory=dict)  # options of a webhook, after #: never sent

    @property
    def is_local(self) -> bool:
        """Whether this URL leads elsewhere, or nowhere, on other machines."""
        endpoint = self.options.get("endpoint", "").partition("://")[2].partition("/")[0]
        host = endpoint if self.kind == "sqs" else self.host
        return self.kind in ("stdout", "file") or self.scheme == "unix" or _is_loopback(host)

    @property
    def has_secret(self) -> bool:
        return bool(self.password) or any(map(self._is_secret, self.options))

    @property
    def known(self) -> str:
        """The URL without secrets: the name of the sink in the store, the same in every process."""
        if self.kind == "stdout":
            return STDOUT
        options = {name: value for name, value in self.options.items() if not self._is_secret(name)}
        who = f"{self.user}@" if self.user else ""
        query = f"?{urlencode(options)}" if options else ""
        tail = f"#{urlencode(self.tail, safe='/:')}" if self.tail else ""
        return f"{self.scheme}://{who}{self.host}{self.path}{query}{tail}"

    @property
    def shown(self) -> str:
        """The URL in messages: short, without secrets."""
        if self.kind in ("stdout", "file"):
            return self.path or "standard output"
        return self.known.partition("#")[0]

    def whole(self, *, without: tuple[str, ...] = ()) -> str:
        """The URL with its secrets, for a driver; `without` are options to leave out."""
        who = f"{self.user}:{self.password}@" if self.password else f"{self.user}@" if self.user else ""
        options = {name: value for name, value in self.options.items() if name not in without}
        return f"{self.scheme}://{who}{self.host}{self.path}" + (f"?{urlencode(options)}" if options else "")

    def _is_secret(self, name: str) -> bool:
        return (_SECRET_OF_PAGE if self.kind == "webhook" else _SECRET).search(name) is not None

    def refuse_unknown(self, *names: str) -> None:
        """Refuse options other than these names."""
        for name in self.options:
            if name not in names:
                known = ", ".join(names)
                raise UsageError(f"the sink {self.shown} has an unknown option {name!r}: known are {known}")


def parse_sink(url: str) -> SinkUrl:
    """Parse a sink's URL. Paths become absolute. Nothing is opened."""
    if url == STDOUT:
        return SinkUrl(kind="stdout")
    match = _URL.fullmatch(url)
    if match is None:
        if "://" not in url and url.endswith(FILE_ENDINGS):
            return SinkUrl(kind="file", scheme="file", path=str(Path(url).resolve()))
        raise UsageError(f"unknown sink {masked(url)!r}: give {FORMS}")
    scheme = match["scheme"]
    kind = KINDS.get(scheme)
    if kind is None or (kind == "file" and not match["path"].endswith(FILE_ENDINGS)):
        raise UsageError(f"unknown sink {masked(url)!r}: give {FORMS}")
    who, _, host = match["netloc"].rpartition("@")
    if "@" in match["path"] + (match["query"] or "") and not who and kind in ("redis", "amqp"):
        raise UsageError(f"{masked(url)}: write / ? # @ inside a password as %2F %3F %23 %40")
    if "***" in url:
        raise UsageError("--sink has *** where a message left out a password: write the password there")
    user, _, password = who.partition(":")
    path = match["path"] if kind != "file" else str(Path(match["path"]).resolve())
    return SinkUrl(
        kind=kind,
        scheme=scheme,
        user=user,
        password=password,
        host=host,
        path=path,
        options=dict(parse_qsl(match["query"] or "", keep_blank_values=True)),
        tail=dict(parse_qsl(match["tail"] or "", keep_blank_values=True)) if kind == "webhook" else {},
    )


def _is_loopback(host: str) -> bool:
    name = re.sub(r":\d+$", "", host).strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
