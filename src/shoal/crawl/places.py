"""The URLs of stores and archives: parsed, compared, and stored in a crawl's record without secrets."""

from __future__ import annotations

import enum
import getpass
import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

import msgspec

from shoal.backends import is_pipe
from shoal.errors import UsageError
from shoal.settings.table import STORE_VARIABLE
from shoal.store.postgres.address import DEFAULT_SCHEMA
from shoal.text.secrets import masked
from shoal.worker.machine import this_machine

DEFAULT_FILE = "shoal.db"
POSTGRES_PORT = 5432

_URL = re.compile(r"(?P<scheme>[a-z0-9+]+)://(?P<netloc>[^/?#]*)(?P<path>[^?#]*)\??(?P<query>.*)", re.DOTALL)
_POSTGRES = ("postgresql", "postgres")
_SECRET = re.compile("password|passwd|secret|token|credential|signature", re.IGNORECASE)
# Schemes without slashes, a typo: the URL would be taken for a file's name.
_NO_SLASHES = re.compile(r"(rediss?(?:\+\w+)?|unix|postgres(?:ql)?|sqlite|s3|gs|az):(?!//)/?", re.IGNORECASE)
_PASSWORD = re.compile(r":[^:@]+@")
_MASKED = re.compile(r":\*\*\*@|=\*\*\*")


class RememberedPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A store or an archive in a crawl's record, without credentials.

    `in_frontier`: in the frontier's own file, wherever that is now. `machine` and `host`: of a file, a folder, or a
    server at a loopback address. `inode`: of the file, to recognise it in a shared folder or after a reboot.
    `has_secret`: its URL had a password."""

    url: str
    in_frontier: bool = False
    machine: str = ""
    host: str = ""
    inode: int = 0
    has_secret: bool = False

    @property
    def shown(self) -> str:
        """For messages: masked, without options."""
        return re.split("[?#]", masked(self.url))[0]


class ResultPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """A crawl's store and archive; no `store`: unknown. `other_stores` and `other_archives`: of workers that joined
    with --other-store, for messages."""

    store: RememberedPlace | None = None
    archive: RememberedPlace | None = None
    other_stores: tuple[str, ...] = ()
    other_archives: tuple[str, ...] = ()


class Obstacle(enum.Enum):
    """Why a process cannot reach a place in a crawl's record."""

    MACHINE = enum.auto()
    MISSING = enum.auto()
    SECRET = enum.auto()


class OutOfReach(Exception):  # noqa: N818 -- the caller turns it into a refusal that names the flag to give
    """This process cannot reach a place in a crawl's record."""

    def __init__(self, where: str, obstacle: Obstacle) -> None:
        super().__init__(where)
        self.obstacle = obstacle


class Server(NamedTuple):
    """The part of a server's URL that identifies the place: without user and options."""

    kind: str
    host: str
    port: int
    path: str
    schema: str = ""

    @property
    def is_local(self) -> bool:
        return self.host == "localhost"


def file_of(url: str) -> str | None:
    """The path of a SQLite file's URL; None for a server."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    return rest[1:] if scheme == "sqlite" and rest.startswith("/") else None


def path_of(url: str) -> str | None:
    """The file or folder of a store's or an archive's URL; None for a server."""
    if url.startswith("files:"):
        return url.removeprefix("files:").removeprefix("//")
    if url.startswith("file://"):
        return url.removeprefix("file://")
    return file_of(url)


def check_store_exists(url: str) -> None:
    """Refuse a store in a missing file or folder: opening it would create an empty one."""
    path = path_of(url)
    if path is not None and not Path(path).exists():
        raise UsageError(
            f"there is no {path} here{named_by(STORE_VARIABLE, url)}: `shoal run FILE` or `shoal crawl URL` makes one,"
            " --store names another"
        )


def named_by(variable: str, url: str, environ: Mapping[str, str] = os.environ) -> str:
    """For a message: says if an environment variable names this place."""
    return f", which {variable} names" if environ.get(variable) == url else ""


def default_store(frontier: str) -> str:
    """The default store: the frontier's file, or a file in this folder."""
    path = file_of(frontier)
    if path is None:
        return DEFAULT_FILE
    return path if path.endswith(".db") else f"sqlite:///{path}"


def remember(url: str, *, frontier: str = "", environ: Mapping[str, str] = os.environ) -> RememberedPlace:
    """A place for a crawl's record. A file or a folder must exist already."""
    path = path_of(url)
    if path is not None:
        return _remember_path(url, Path(path).resolve(), frontier=frontier)
    where = server_of(url, environ)
    return RememberedPlace(
        url=_without_secrets(url, where, environ),
        machine=this_machine() if where.is_local else "",
        host=socket.gethostname() if where.is_local else "",
        has_secret=_has_secret(url),
    )


def is_same(remembered: RememberedPlace, url: str, *, frontier: str = "") -> bool:
    """Whether a URL names the remembered place. Credentials and options do not matter."""
    path = path_of(url)
    if remembered.in_frontier:
        # Behind a pipe the frontier's file cannot be seen: compare with its recorded path.
        beside = remembered.url if is_pipe(frontier) else frontier
        return path is not None and _is_frontiers(Path(path).resolve(), beside)
    known = path_of(remembered.url)
    if path is None or known is None:
        return path is known is None and _is_same_server(remembered, url)
    # Two kinds of places may share a path: a folder of JSON Lines is no archive.
    is_of_kind = url.startswith("files:") == remembered.url.startswith("files:")
    return is_of_kind and Path(path).resolve() == Path(known) and _is_here(remembered)


def is_missing(remembered: RememberedPlace) -> bool:
    """Whether a place is a file or a folder that does not exist any more."""
    path = None if remembered.in_frontier else path_of(remembered.url)
    return path is not None and not Path(path).exists()


def is_first(remembered: RememberedPlace, url: str, *, frontier: str = "") -> bool:
    """Whether a URL names the remembered place and, for a file, the same file, not a replacement."""
    if not is_same(remembered, url, frontier=frontier):
        return False
    return not remembered.inode or remember(url, frontier=frontier).inode == remembered.inode


def recalled(remembered: RememberedPlace, *, frontier: str, environ: Mapping[str, str] = os.environ) -> str:
    """The URL by which this process reaches the place; raises OutOfReach if it cannot."""
    if remembered.in_frontier and is_pipe(frontier):
        raise OutOfReach(f"{remembered.shown}, the coordinator's own file", Obstacle.MACHINE)
    if remembered.in_frontier:
        return default_store(frontier)
    path = path_of(remembered.url)
    is_elsewhere = not _is_here(remembered) if path is not None else not _is_reachable(remembered)
    if is_elsewhere:
        raise OutOfReach(f"{remembered.shown} on the machine {remembered.host}", Obstacle.MACHINE)
    if is_missing(remembered):
        raise OutOfReach(f"{remembered.shown}, which is not there any more", Obstacle.MISSING)
    if remembered.has_secret and not _has_password_elsewhere(remembered.url, environ):
        raise OutOfReach(f"{remembered.shown}, which needs a password", Obstacle.SECRET)
    return remembered.url


def server_of(url: str, environ: Mapping[str, str] = os.environ) -> Server:
    """The server and path in the URL of a store or an archive."""
    scheme, netloc, path, query = _split(url)
    options = dict(parse_qsl(query, keep_blank_values=True))
    if scheme in _POSTGRES:
        return _postgres_of(netloc, path, options, environ)
    endpoint = _split(_endpoint(options, environ))[1] if scheme == "s3" else ""
    account = (options.get("account") or environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")) if scheme == "az" else ""
    host, _, port = (endpoint or account).rpartition("@")[2].partition(":")
    return Server(scheme, _host(host) if host else "", int(port) if port.isdigit() else 0, f"{netloc}{path}".strip("/"))


def _postgres_of(netloc: str, path: str, options: Mapping[str, str], environ: Mapping[str, str]) -> Server:
    who, _, hosts = netloc.rpartition("@")
    host, port = _host_and_port(hosts)
    user = unquote(who.partition(":")[0]) or options.get("user") or environ.get("PGUSER") or getpass.getuser()
    return Server(
        "postgresql",
        _host(host or options.get("host") or environ.get("PGHOST", "")),
        _number(port or options.get("port") or environ.get("PGPORT") or ""),
        unquote(path.strip("/")) or options.get("dbname") or environ.get("PGDATABASE") or user,
        options.get("schema") or DEFAULT_SCHEMA,
    )


def _host_and_port(hosts: str) -> tuple[str, str]:
    """One host, or a list of them, with the port of the first; a list of ports stays with its hosts."""
    host, _, port = hosts.rpartition(":") if re.search(r":\d+$", hosts) and "," not in hosts else (hosts, "", "")
    return unquote(host), port


def _number(port: str) -> int:
    return int(port) if port.isascii() and port.isdigit() else POSTGRES_PORT


def _host(name: str) -> str:
    """A host's name in one spelling: loopback addresses are localhost."""
    name = name.strip("[]").lower()
    if name in ("", "localhost") or name.startswith("/"):
        return "localhost"
    try:
        return "localhost" if ipaddress.ip_address(name).is_loopback else name
    except ValueError:
        return name


def _endpoint(options: Mapping[str, str], environ: Mapping[str, str]) -> str:
    named = (options.get("endpoint"), environ.get("AWS_ENDPOINT_URL_S3"), environ.get("AWS_ENDPOINT_URL"))
    return next((text for text in named if text), "")


def _split(url: str) -> tuple[str, str, str, str]:
    match = _URL.fullmatch(url)
    return (match["scheme"], match["netloc"], match["path"], match["query"]) if match else ("", "", url, "")


def _without_secrets(url: str, where: Server, environ: Mapping[str, str]) -> str:
    """The URL without its secrets, and with the parts of the place that come from this process's environment."""
    scheme, netloc, path, query = _split(url)
    options = {name: value for name, value in parse_qsl(query) if not _SECRET.search(name)}
    user, _, host = netloc.rpartition("@")
    if scheme in _POSTGRES:
        if not host and "host" not in options and environ.get("PGHOST"):
            options["host"] = environ["PGHOST"]
        if "port" not in options and not _host_and_port(host)[1] and where.port != POSTGRES_PORT:
            options["port"] = str(where.port)
        path = path if path.strip("/") or "dbname" in options else f"/{quote(where.path)}"
    if scheme == "s3" and (endpoint := _endpoint(options, environ)):
        options["endpoint"] = re.sub("//[^/@]*@", "//", endpoint)
    user = user.partition(":")[0]
    return f"{scheme}://{user}{user and '@'}{host}{path}" + (f"?{urlencode(options)}" if options else "")


def _has_secret(url: str) -> bool:
    _, netloc, _, query = _split(url)
    return ":" in netloc.rpartition("@")[0] or any(_SECRET.search(name) for name, _ in parse_qsl(query))


def _has_password_elsewhere(url: str, environ: Mapping[str, str]) -> bool:
    """Whether the driver may find the password of a PostgreSQL server itself."""
    file = dict(parse_qsl(_split(url)[3])).get("passfile") or environ.get("PGPASSFILE")
    return "PGPASSWORD" in environ or Path(file or Path.home() / ".pgpass").is_file()


def _remember_path(url: str, path: Path, *, frontier: str) -> RememberedPlace:
    if _is_frontiers(path, frontier):
        return RememberedPlace(url=str(path), in_frontier=True)
    kind = "files://" if url.startswith("files:") else "sqlite:///" if url.startswith("sqlite:") else ""
    try:
        inode = path.stat().st_ino
    except OSError:
        inode = 0
    return RememberedPlace(url=f"{kind}{path}", machine=this_machine(), host=socket.gethostname(), inode=inode)


def _is_frontiers(path: Path, frontier: str) -> bool:
    file = file_of(frontier) if frontier else None
    return file is not None and Path(file).resolve() == path


def _is_here(remembered: RememberedPlace) -> bool:
    """Whether a remembered file or folder is on this machine, or shared with it.

    The host name is not enough: copies of one image share it. The inode recognises the machine after a reboot."""
    if remembered.machine == this_machine():
        return True
    try:
        return remembered.inode == Path(path_of(remembered.url) or "").stat().st_ino
    except OSError:
        return False


def _is_reachable(remembered: RememberedPlace) -> bool:
    """Whether the address means the same server here: a loopback address is another server on every machine."""
    return _is_on_this_machine(remembered) or not server_of(remembered.url).is_local


def _is_on_this_machine(remembered: RememberedPlace) -> bool:
    return remembered.machine == this_machine() or remembered.host == socket.gethostname()


def _is_same_server(remembered: RememberedPlace, url: str) -> bool:
    ours, theirs = server_of(url), server_of(remembered.url)
    return ours == theirs and (not ours.is_local or _is_on_this_machine(remembered))


def check_place(url: str, *, where: str) -> None:
    """Refuse a server's URL without its scheme or slashes: it would be taken for a file's name, and its password shown.
    `where`: the flag or setting that gave it."""
    if "://" not in url and _PASSWORD.search(url) and not Path(url).exists():
        raise UsageError(f"{where} looks like a server's URL without its scheme: write scheme://user:…@host")
    if (match := _NO_SLASHES.match(url)) and not _PASSWORD.search(url):
        slashes = "///" if match[1] in ("sqlite", "unix") else "//"
        raise UsageError(f"{where} {url}: did you mean {match[1]}:{slashes}{url[match.end() :]}?")
    if _MASKED.search(url):
        raise UsageError(f"{where} has *** where a message left out a password: write the password there")
