"""The alerts of shoal.toml: rules and targets. Secrets stay inside `Target`."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NoReturn
from urllib.parse import urlsplit

import msgspec

from shoal.errors import SettingError
from shoal.settings.values import parse_duration
from shoal.text.near_names import did_you_mean

ALERTS: Final = "alerts"
TO: Final = "to"
ENCODING: Final = "utf-8-sig"  # Windows editors begin a file with a byte order mark
MOST_TARGETS: Final = 20
SHORTEST_LOOK_SECONDS: Final = 0.2
_SHARE: Final = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)%")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_ADDRESS: Final = re.compile(r"[^\s@<>,;]+@[^\s@<>,;]+")

Kind = Literal["webhook", "slack", "email", "command"]
KINDS: Final[tuple[Kind, ...]] = ("webhook", "slack", "email", "command")


class AlertRules(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the rules: times in seconds, shares from 0 to 1. None: the rule is off."""

    queue_growing: float | None = None
    error_share: float | None = None
    error_window: float = 600.0
    no_progress: float | None = None
    worker_lost: float | None = None
    dead_letters: int | None = None
    budget_spent: float | None = None
    deadline: float | None = None
    disk_free: float | None = None
    store_slow: float | None = None
    schedule_failed: bool | None = None
    sink_behind: float | None = None

    @property
    def longest(self) -> float:
        """The seconds of history that the rules need."""
        return max(self.queue_growing or 0.0, self.error_window, self.no_progress or 0.0)


RULE_NAMES: Final = tuple(name for name in AlertRules.__struct_fields__ if name != "error_window")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver of alerts. Only its name and kind are ever shown."""

    name: str
    kind: Kind
    alerts: tuple[str, ...] = ()
    url: str = ""
    headers: dict[str, str] = {}
    addresses: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    smtp_host: str = ""
    smtp_port: int = 0
    tls: Literal["starttls", "ssl", "none"] = "starttls"
    user: str = ""
    password: str = ""
    sender: str = ""

    def __repr__(self) -> str:
        return f"Target({self.name!r}, {self.kind!r})"

    def wants(self, alert: str) -> bool:
        """Whether it receives alerts of this name."""
        return not self.alerts or alert in self.alerts


class AlertConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The tables `[alerts]` of shoal.toml. An alert fires, and is over, after its state has lasted `hold` seconds."""

    rules: AlertRules
    targets: tuple[Target, ...]
    every: float = 30.0
    hold: float = 60.0
    spiders: tuple[str, ...] = ()


class _Table(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The keys of `[alerts]`, as written."""

    queue_growing: str | None = None
    error_share: str | None = None
    error_window: str = "10m"
    no_progress: str | None = None
    worker_lost: str | None = None
    dead_letters: int | None = None
    budget_spent: str | None = None
    deadline: str | None = None
    disk_free: str | None = None
    store_slow: str | None = None
    schedule_failed: bool = False
    sink_behind: str | None = None
    every: str = "30s"
    hold: str = "1m"
    spiders: tuple[str, ...] = ()
    to: list[dict[str, Any]] = []


class _ToTable(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The keys of `[[alerts.to]]`."""

    name: str = ""
    webhook: str = ""
    webhook_env: str = ""
    slack: str = ""
    slack_env: str = ""
    headers: dict[str, str] = {}
    email: str | list[str] = ""
    command: list[str] = []
    smtp: str = ""
    tls: Literal["starttls", "ssl", "none"] = "starttls"
    user: str = ""
    password_env: str = ""
    password_file: str = ""
    sender: str = ""
    alerts: tuple[str, ...] = ()


def load_alerts(config: Path, *, environ: Mapping[str, str] = os.environ) -> AlertConfig | None:
    """The alerts of a shoal.toml; None: it has none, or there is no such file."""
    if not config.exists():
        return None
    try:
        table = tomllib.loads(config.read_text(encoding=ENCODING)).get(ALERTS)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{config} is not valid TOML: {error}") from None
    if table is None:
        return None
    source = _Source(f"[{ALERTS}] in {config}", config.parent, environ)
    given = source.read(table, _Table)
    rules = _rules(given, source)
    if not any(getattr(rules, name) is not None for name in RULE_NAMES):
        source.fail('it names no alert: write one, such as no_progress = "10m"')
    if not given.to:
        source.fail("nobody is told of them: write [[alerts.to]] with webhook, slack, email or command")
    every = source.seconds("every", given.every)
    if every < SHORTEST_LOOK_SECONDS:
        source.fail(f"every: {given.every} is too often: write 30s")
    targets = tuple(_target(number, one, config, environ) for number, one in enumerate(given.to, 1))
    if len({target.name for target in targets}) < len(targets) or len(targets) > MOST_TARGETS:
        source.fail(f"each [[alerts.to]] needs a name of its own, and there are at most {MOST_TARGETS}")
    return AlertConfig(
        rules=rules, targets=targets, every=every, hold=source.seconds("hold", given.hold), spiders=given.spiders
    )


class _Source:
    """Checks the values of one table, reads the files and variables that it names, and raises SettingError."""

    def __init__(self, table: str, folder: Path, environ: Mapping[str, str]) -> None:
        self._table = table
        self._folder = folder
        self._environ = environ

    def fail(self, problem: str) -> NoReturn:
        raise SettingError(f"{self._table}: {problem}")

    def read(self, table: Any, kind: type[Any]) -> Any:
        """The table with every value checked. Errors quote no values: they may be secrets."""
        if not isinstance(table, dict):
            self.fail("it is not a table")
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        for key, value in table.items():
            if key not in fields:
                self.fail(f"unknown key {key!r}; {did_you_mean(key, fields, otherwise='see the how-to page')}")
            try:
                msgspec.convert(value, fields[key].type)
            except msgspec.ValidationError as error:
                self.fail(f"{key}: {str(error).lower()}")
        return msgspec.convert(table, kind)

    def seconds(self, key: str, text: str) -> float:
        try:
            return parse_duration(text)
        except SettingError as error:
            self.fail(f"{key}: {error}")

    def share(self, key: str, text: str) -> float:
        match = _SHARE.fullmatch(text)
        if match is None or float(match[1]) > 100:
            self.fail(f"{key}: {text!r} is no share: write it as 20%")
        return float(match[1]) / 100

    def variable(self, name: str) -> str:
        return self._environ.get(name, "").strip() or self.fail(f"the environment has no {name}")

    def text(self, name: str) -> str:
        try:
            return (self._folder / name).read_text(encoding=ENCODING).strip()
        except (OSError, UnicodeDecodeError) as error:
            self.fail(f"cannot read {name}: {(error.strerror if isinstance(error, OSError) else None) or error}")


def _rules(given: _Table, source: _Source) -> AlertRules:
    def seconds(name: str) -> float | None:
        text = getattr(given, name)
        if text is None:
            return None
        found = source.seconds(name, text)
        return found if found > 0 else source.fail(f"{name}: write a time above zero, such as 10m")

    def share(name: str) -> float | None:
        text = getattr(given, name)
        return None if text is None else source.share(name, text)

    if given.dead_letters is not None and given.dead_letters < 0:
        source.fail("dead_letters: write how many there may be, 0 or more")
    return AlertRules(
        queue_growing=seconds("queue_growing"),
        error_share=share("error_share"),
        error_window=source.seconds("error_window", given.error_window) or 600.0,
        no_progress=seconds("no_progress"),
        worker_lost=seconds("worker_lost"),
        dead_letters=given.dead_letters,
        budget_spent=share("budget_spent"),
        deadline=seconds("deadline"),
        disk_free=share("disk_free"),
        store_slow=seconds("store_slow"),
        schedule_failed=given.schedule_failed or None,
        sink_behind=seconds("sink_behind"),
    )


def _target(number: int, table: Any, config: Path, environ: Mapping[str, str]) -> Target:
    name = table.get("name") if isinstance(table, dict) else None
    label = repr(name) if isinstance(name, str) and _NAME.fullmatch(name) else f"number {number}"
    source = _Source(f"[[{ALERTS}.{TO}]] {label} in {config}", config.parent, environ)
    given: _ToTable = source.read(table, _ToTable)
    if not _NAME.fullmatch(given.name):
        source.fail("it needs a name of letters, digits, dots and dashes: write name = …")
    kinds = [kind for kind in KINDS if getattr(given, kind) or getattr(given, f"{kind}_env", "")]
    if len(kinds) != 1:
        source.fail("write exactly one of webhook, slack, email and command")
    for alert in given.alerts:
        if alert not in RULE_NAMES:
            source.fail(f"alerts: there is no {alert!r}; {did_you_mean(alert, RULE_NAMES, otherwise='see the page')}")
    kind = kinds[0]
    if kind == "email":
        return _mailbox(given, source)
    if kind == "command":
        return Target(name=given.name, kind=kind, alerts=given.alerts, command=tuple(given.command))
    variable = getattr(given, f"{kind}_env")
    url = source.variable(variable) if variable else getattr(given, kind)
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        source.fail(f"{kind}: it is no http or https URL")
    return Target(name=given.name, kind=kind, alerts=given.alerts, url=url, headers=given.headers)


def _mailbox(given: _ToTable, source: _Source) -> Target:
    addresses = tuple([given.email] if isinstance(given.email, str) else given.email)
    for address in (*addresses, *([given.sender] if given.sender else [])):
        if not _ADDRESS.fullmatch(address):
            source.fail(f"{address!r} is no address: write it as you@example.com")
    host, _, port = given.smtp.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        source.fail('smtp: write the mail server as smtp = "mail.example.com:587"')
    if given.password_env and given.password_file:
        source.fail("write one of password_env and password_file")
    password = source.variable(given.password_env) if given.password_env else ""
    password = source.text(given.password_file) if given.password_file else password
    if bool(given.user) != bool(password):
        source.fail("a login is user together with password_env or password_file")
    if password and given.tls == "none" and host.strip("[]") not in ("127.0.0.1", "::1", "localhost"):
        source.fail('tls = "none" would send the password in the clear: write tls = "starttls" or "ssl"')
    return Target(
        name=given.name,
        kind="email",
        alerts=given.alerts,
        addresses=addresses,
        smtp_host=host.strip("[]"),
        smtp_port=int(port),
        tls=given.tls,
        user=given.user,
        password=password,
        sender=given.sender or addresses[0],
    )
