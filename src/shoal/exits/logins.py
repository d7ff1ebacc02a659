"""Accounts as people write them: logins, and headers that let requests in."""

from __future__ import annotations

import re
import tomllib
from typing import Final

import ada_url
import msgspec

from shoal.exits.exit_urls import parse_proxy
from shoal.exits.pool_tables import Login, Source, Table
from shoal.fetch.exits import ExitConfig

_LOGIN_NAME: Final = re.compile(r"[^\s/]{1,100}")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]{1,8192}")
_HTTP: Final = re.compile("https?://")
_FROM_ENVIRONMENT: Final = "_env"


def accounts_in(pool: str, given: Table, source: Source) -> tuple[ExitConfig, ...]:
    """The accounts of a pool, in the order they were written."""
    logins = list(given.logins)
    if given.file.endswith(".toml"):
        logins += _logins_of(given.file, source)
    elif given.file:
        logins += [_login(line, source) for line in source.lines(given.file)]
    if given.env:
        logins += [_login(word, source) for word in source.variable(given.env).split()]
    hosts = tuple(_beginning(host, source, number=number) for number, host in enumerate(given.hosts, 1))
    exits: dict[str, ExitConfig] = {}
    for number, login in enumerate(logins, 1):
        where = f"login {number} of its {len(logins)}"
        config = _account(pool, login, source, where=where, hosts=hosts)
        if config.name in exits:
            source.fail(f"{where} has no name of its own: write name = …")
        exits[config.name] = config
    kinds = {config.kind for config in exits.values()}
    if len(kinds) > 1:
        source.fail("some of its accounts have a password and some have only headers: make two pools of them")
    if hosts and not any(config.headers for config in exits.values()):
        source.fail("hosts says where headers go, and no login has headers: write headers = { … }")
    return tuple(exits.values())


def _account(pool: str, login: Login, source: Source, *, where: str, hosts: tuple[str, ...]) -> ExitConfig:
    headers = login.get("headers", {})
    if isinstance(headers, str):
        source.fail(f'headers of {where} is no table: write headers = {{ X-Api-Key_env = "NAME_OF_A_VARIABLE" }}')
    plain = {key: value for key, value in login.items() if key != "headers"}
    texts = {key: value for key, value in plain.items() if isinstance(value, str)}
    if odd := next((key for key in plain if key not in texts), None):
        source.fail(f"{odd} of {where} is a table: only headers is one")
    fields = _resolved(texts, source)
    name = fields.get("name", "")
    if not _LOGIN_NAME.fullmatch(name):
        source.fail(f"{where} has no name of its own: write name = …")
    agent, proxy = fields.pop("user_agent", ""), fields.pop("proxy", "")
    url, problem = parse_proxy(proxy) if proxy else ("", "")
    if proxy and not url:
        source.fail(f"the proxy of {name} is not one ({problem}): write http://user:password@host:3128")
    return ExitConfig(
        name=f"{pool}/{name}",
        kind="key" if headers and fields.keys() == {"name"} else "account",
        url=url,
        user_agent=agent,
        fields=fields,
        headers=_headers(headers, source, name=name, hosts=hosts),
        hosts=hosts if headers else (),
    )


def _resolved(texts: dict[str, str], source: Source) -> dict[str, str]:
    """The values, those of variables looked up: `password_env` is the password."""
    return {
        key.removesuffix(_FROM_ENVIRONMENT): source.variable(value) if key.endswith(_FROM_ENVIRONMENT) else value
        for key, value in texts.items()
    }


def _headers(headers: dict[str, str], source: Source, *, name: str, hosts: tuple[str, ...]) -> dict[str, str]:
    found = _resolved(headers, source)
    for number, (header, value) in enumerate(found.items(), 1):
        if not _HEADER_NAME.fullmatch(header) or not _HEADER_VALUE.fullmatch(value):
            # Neither name nor value: people may have swapped them.
            source.fail(f"header {number} of {name} is no header: write a name, and a value of one line in ASCII")
    if found and not hosts:
        source.fail('its headers would go to every site: write hosts = ["api.example.com"]')
    return found


def _beginning(host: str, source: Source, *, number: int) -> str:
    """What the URLs of a host begin with. Over http only where that was written: there anybody can read headers."""
    written = host if "://" in host else f"https://{host}"
    try:
        # As in the URLs of tasks: api.bücher.example has another form there.
        url = ada_url.URL(f"{written.rstrip('/')}/")
    except ValueError:
        url = None
    if url is None or "*" in url.host or url.href != f"{url.protocol}//{url.host}/" or not _HTTP.match(url.href):
        source.fail(  # without the entry: people may have written a secret into it
            f"entry {number} of hosts is no host: write api.example.com, or http://localhost:8000 without TLS"
        )
    return url.href


def _logins_of(name: str, source: Source) -> list[Login]:
    try:
        return msgspec.convert(tomllib.loads(source.text(name)).get("logins"), list[Login])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError):
        source.fail(f"{name} is no list of logins: write [[logins]] with name = … and password = …")


def _login(line: str, source: Source) -> Login:
    name, colon, password = line.partition(":")
    return {"name": name, "password": password} if colon else source.fail("a login is written as name:password")
