"""Sinks as a process knows them: those that it was given, those that the store names, and which it can send to."""

from __future__ import annotations

import os
import socket
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from shoal.errors import UsageError
from shoal.sink import open_sink
from shoal.sink.base import Sink
from shoal.sink.sink_urls import STDOUT, SinkUrl, parse_sink
from shoal.store.base import Outbox, SinkPlace, SinkState


class Outlet(NamedTuple):
    """A sink that this process can send to, not connected yet."""

    id: int
    spider: str
    shown: str
    sink: Sink


class Outlets(NamedTuple):
    """The sinks of a store that this process can send to, and a line for each of the others that says why not."""

    open: list[Outlet]
    closed: list[str]


def sinks_given(urls: Sequence[str], *, environ: Mapping[str, str] = os.environ) -> list[SinkUrl]:
    """The sinks that a command names, each once. Refuses one that cannot be used."""
    found = {url.known: url for url in map(parse_sink, urls)}
    for url in found.values():
        open_sink(url, environ=environ)
    return list(found.values())


def place_of(url: SinkUrl, spider: str) -> SinkPlace:
    """A sink as the store remembers it."""
    host = socket.gethostname() if url.is_local else ""
    return SinkPlace(spider=spider, url=url.known, host=host, has_secret=url.has_secret)


def shown_place(place: SinkPlace) -> str:
    """A remembered sink as people see it."""
    shown = parse_sink(place.url).shown
    return f"{shown} on {place.host}" if place.host and place.host != socket.gethostname() else shown


async def begin_sinks(outbox: Outbox, spider: str, given: Sequence[SinkUrl]) -> None:
    """Let a spider's changes wait for these sinks from now on, beside those that it has. Standard output is for one
    run: that of a run which was killed is forgotten, unless this one names it, too."""
    for url in given:
        await outbox.add(place_of(url, spider))
    if STDOUT not in [url.known for url in given]:
        await forget_stdout(outbox, spider)


async def forget_stdout(outbox: Outbox, spider: str) -> None:
    """End the sink that is this process's standard output."""
    for state in await outbox.sinks(spider):
        if state.place.url == STDOUT and state.place.host == socket.gethostname():
            await outbox.remove(state.id)


async def outlets_of(
    outbox: Outbox,
    spider: str | None,
    given: Sequence[SinkUrl],
    *,
    only: Container[int] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Outlets:
    """The sinks of a spider, or of all; `only`: those with these ids. One that was `given` is opened with its secrets,
    others as far as it goes."""
    found = Outlets([], [])
    by_name = {(place_of(url, "").url, place_of(url, "").host): url for url in given}
    for state in await outbox.sinks(spider):
        if only is not None and state.id not in only:
            continue
        url = by_name.get((state.place.url, state.place.host))
        try:
            sink = open_sink(url or _recalled(state), environ=environ)
        except UsageError as error:
            found.closed.append(str(error))
        else:
            found.open.append(Outlet(state.id, state.place.spider, shown_place(state.place), sink))
    return found


def _recalled(state: SinkState) -> SinkUrl:
    """The URL of a sink that nobody gave. Refuses one that cannot be reached with what is known of it."""
    place, shown = state.place, shown_place(state.place)
    if place.host and place.host != socket.gethostname():
        raise UsageError(f"the sink {shown} is of another machine: changes wait until a run there sends them")
    if place.url == STDOUT:
        raise UsageError("the sink on standard output is of one run: changes wait until it ends")
    if place.has_secret:
        raise UsageError(f"the sink {shown} needs its password: give its whole URL, changes wait until then")
    return parse_sink(place.url)
