"""File descriptors and other resources that connections need: limits, shortages, and advice for them."""

from __future__ import annotations

import errno
import ipaddress
import os
import resource
import socket
from typing import Final

import msgspec

from shoal.settings.table import Settings
from shoal.text.errors import several

MOST_WANTED: Final = 65_536
RESERVE: Final = 64  # files of frontier, store and archive, connections to servers, files of the spider
PER_PAGE: Final = 2  # of a page in flight: its connection, and the socket of a DNS look-up
MOST_IDLE: Final = 1536  # connections that are kept open; each takes about 40 kB
FEWEST_IDLE: Final = 32
OPEN_FILES: Final = "open files: "
PORTS: Final = "ports: "
MEMORY: Final = "memory: "
NO_FILES: Final = (errno.EMFILE, errno.ENFILE)
CURE: Final = "raise the limit with ulimit -n"
FEWER_PAGES: Final = f"; {CURE}"


def raise_limit() -> None:
    """Raise this process's limit of open files as far as allowed, up to MOST_WANTED."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_WANTED if hard == resource.RLIM_INFINITY else min(hard, MOST_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # macOS accepts less than its hard limit
            return


def open_limit() -> int:
    """The number of files that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_WANTED if soft == resource.RLIM_INFINITY else soft


def open_count() -> int:
    """The number of files that this process has open; 0: unknown."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return 0


def pages_within(limit: int, wanted: int) -> int:
    """The number of pages that a worker can have in flight within this limit, at most `wanted`."""
    return max(1, min(wanted, (limit - RESERVE) // PER_PAGE))


def idle_within(limit: int, pages: int) -> int:
    """The number of idle connections to keep, besides those of the pages in flight."""
    return max(FEWEST_IDLE, min(MOST_IDLE, limit - RESERVE - PER_PAGE * pages))


def is_short(limit: int, pages: int) -> bool:
    """Whether too few descriptors are left for the pages in flight and everything else."""
    return open_count() > limit - RESERVE // 2 - pages


def within_limit(settings: Settings) -> tuple[Settings, str]:
    """The settings with `concurrency` lowered to what the descriptors allow; and the trouble, if it is lower."""
    limit = open_limit()
    pages = pages_within(limit, settings.concurrency)
    if pages == settings.concurrency:
        return settings, ""
    fewer = f"{several(pages, 'page')} at once instead of {settings.concurrency}"
    trouble = f"{OPEN_FILES}{fewer}, as {limit:,} allow{FEWER_PAGES}"
    return msgspec.structs.replace(settings, concurrency=pages), trouble


def is_used_up(*, needed: int = 1) -> bool:
    """Whether this process or the system cannot open `needed` files now."""
    files: list[int] = []
    try:
        for _ in range(needed):
            files.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in NO_FILES
    finally:
        for file in files:
            os.close(file)
    return False


def names_files(message: str) -> bool:
    """Whether a shortage's message is about open files."""
    return any(os.strerror(number) in message for number in NO_FILES)


def has_source(address: str) -> bool:
    """Whether this machine has a source address for a destination: if so, a failure means that ports are used up. True
    for a host name."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    except ValueError:
        return True
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing
    except OSError as error:
        return error.errno in NO_FILES
    return True


def trouble_of_shortage(message: str) -> str:
    """The trouble of a worker that met a shortage, with advice."""
    if os.strerror(errno.ENFILE) in message:
        return f"{OPEN_FILES}all of the system are in use: raise fs.file-max"
    if os.strerror(errno.EADDRNOTAVAIL) in message:
        return f"{PORTS}none is left for a new connection: widen net.ipv4.ip_local_port_range"
    if os.strerror(errno.EMFILE) in message or is_used_up():
        return f"{OPEN_FILES}all {open_limit():,} are in use: {CURE}"
    return f"{MEMORY}the system has none for a new connection: {message}"


def is_shortage(line: str) -> bool:
    """Whether a trouble of a worker is a shortage of this machine."""
    return line.startswith((OPEN_FILES, PORTS, MEMORY))
