"""`shoal sink`: the state of sinks; send what waits, send everything again, remove a sink."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shoal.cli.display.numbers import count, duration, moment, moment_given, several
from shoal.cli.display.screen import Screen
from shoal.cli.options import json_with, store_option
from shoal.crawl.places import check_store_exists
from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.sinks.pump import SinkPump
    from shoal.sinks.urls import SinkUrl
    from shoal.store.base import SinkState, Store

T = TypeVar("T")

FIELDS = ("id", "spider", "sink", "waiting", "oldest", "sent", "sent_at", "trouble", "trouble_since")


@click.group(short_help="Where items are sent on: what waits, what failed, send again.")
def sink() -> None:
    """Where items are sent on: what waits, what failed, send again. `shoal run --sink URL` adds a sink for its spider.

    \b
    Example: shoal sink status
    """


@sink.command(short_help="Show each sink: what was sent, what waits and why.")
@click.option("--spider", metavar="NAME", help="Only the sinks of this spider.")
@store_option
@json_with(*FIELDS)
def status(*, store: str, spider: str | None, as_json: bool) -> None:
    """Show each sink: what was sent, what waits and why.

    \b
    Example: shoal sink status --store postgresql://db/shop
    """

    async def read(opened: Store) -> list[SinkState]:
        return await opened.outbox.sinks(spider)

    found = _with_store(store, read)
    screen = Screen()
    if as_json:
        screen.json([document_of(state) for state in found])
        return
    if not found:
        screen.line("no sinks: `shoal run FILE --sink URL` adds one")
        return
    rows = [_row(state) for state in found]
    columns = ("id", "spider", "sink", "sent", "waiting", "oldest", "trouble")
    screen.table(columns, rows, right=("id", "sent", "waiting"), whole=("id", "sent", "waiting"))


@sink.command(short_help="Send what waits, without a crawl.")
@click.argument("sinks", metavar="[SINK]...", nargs=-1)
@click.option("--follow", is_flag=True, help="Run until Ctrl-C: send new changes, wait for unreachable sinks.")
@store_option
@json_with("sink", "sent", "waiting", "trouble")
def send(sinks: tuple[str, ...], *, store: str, follow: bool, as_json: bool) -> int:
    """Send what waits, without a crawl. SINK is an id of `shoal sink status`, or a sink's URL with its password; none:
    all sinks. Returns 1 if something still waits.

    \b
    Example: shoal sink send
    """
    screen = Screen()

    async def work(opened: Store) -> list[dict[str, Any]]:
        return await _send(opened, sinks, follow=follow, screen=screen)

    return _show_ends(_with_store(store, work), screen, as_json=as_json)


@sink.command(short_help="Send all items once more, as they are now.")
@click.argument("sink", metavar="[SINK]", required=False)
@click.option("--since", metavar="TIME", help="Only items that changed since then: 2h or 7d ago, or a date.")
@store_option
@json_with("sink", "sent", "waiting", "trouble")
def replay(sink: str | None, *, store: str, since: str | None, as_json: bool) -> int:
    """Send all items once more, as they are now: each as new, with its current version, after the waiting changes. SINK
    is an id of `shoal sink status`, or a sink's URL; leave it out if there is only one.

    \b
    Example: shoal sink replay 1 --since 7d
    """
    screen = Screen()
    start = None if since is None else moment_given(since)

    async def work(opened: Store) -> list[dict[str, Any]]:
        state = await _single(opened, sink)
        queued = await opened.outbox.replay(state.id, since=start)
        screen.say(f"{several(queued, 'item')} queued for {_shown(state)}")
        return await _send(opened, (sink or str(state.id),), follow=False, screen=screen)

    return _show_ends(_with_store(store, work), screen, as_json=as_json)


@sink.command(short_help="Remove a sink and drop what waits for it.")
@click.argument("sink", metavar="[SINK]", required=False)
@click.option("--yes", is_flag=True, help="Even if changes wait for it: they are dropped.")
@store_option
@json_with("sink", "dropped")
def remove(sink: str | None, *, store: str, yes: bool, as_json: bool) -> None:
    """Remove a sink. SINK is an id of `shoal sink status`, or a sink's URL; leave it out if there is only one.

    \b
    Example: shoal sink remove 2
    """

    async def work(opened: Store) -> SinkState:
        state = await _single(opened, sink)
        if state.waiting and not yes:
            raise UsageError(
                f"{several(state.waiting, 'change')} wait for {_shown(state)}: `shoal sink send` sends them, --yes"
                " drops them"
            )
        await opened.outbox.remove(state.id)
        return state

    state = _with_store(store, work)
    screen = Screen()
    if as_json:
        screen.json({"sink": _shown(state), "dropped": state.waiting})
        return
    dropped = f", {several(state.waiting, 'change')} dropped" if state.waiting else ""
    screen.line(f"{state.place.spider} is no longer sent to {_shown(state)}{dropped}")


def document_of(state: SinkState) -> dict[str, Any]:
    """A sink as --json shows it."""
    return {
        "id": state.id,
        "spider": state.place.spider,
        "sink": _shown(state),
        "waiting": state.waiting,
        "oldest": state.oldest or None,
        "sent": state.sent,
        "sent_at": state.sent_at or None,
        "trouble": state.trouble,
        "trouble_since": state.trouble_since or None,
    }


def _row(state: SinkState) -> tuple[str, ...]:
    age = f"{duration(max(0.0, time.time() - state.oldest))} ago" if state.oldest else ""
    trouble = f"since {moment(state.trouble_since)}: {state.trouble}" if state.trouble else ""
    numbers = (count(state.sent), count(state.waiting))
    return str(state.id), state.place.spider, _shown(state), *numbers, age, trouble


def _shown(state: SinkState) -> str:
    from shoal.sinks.pump import shown_place

    return shown_place(state.place)


def _with_store(url: str, work: Callable[[Store], Awaitable[T]]) -> T:
    from shoal.cli.loop import run
    from shoal.crawl.opening import store_at

    async def opened() -> T:
        async with store_at(url) as store:
            return await work(store)

    check_store_exists(url)
    return run(opened())


async def _single(store: Store, named: str | None) -> SinkState:
    """The only sink that `named` matches."""
    states, _ = await _matching(store, named)
    if len(states) > 1:
        raise UsageError(f"{len(states)} sinks match: name one by its id, `shoal sink status` lists them")
    return states[0]


async def _matching(store: Store, named: str | None) -> tuple[list[SinkState], SinkUrl | None]:
    """The sinks with this id or URL (one per spider), and the parsed URL; without a name, all sinks."""
    from shoal.sinks.pump import place_of
    from shoal.sinks.urls import parse_sink

    states = await store.outbox.sinks()
    if not states:
        raise UsageError("this store has no sinks: `shoal run FILE --sink URL` adds one")
    if named is None:
        return states, None
    if named.isdigit():
        found, url = [state for state in states if str(state.id) == named], None
    else:
        url = parse_sink(named)
        place = place_of(url, "")
        found = [one for one in states if (one.place.url, one.place.host) == (place.url, place.host)]
    if not found:
        shown = named if url is None else url.shown
        raise UsageError(f"there is no sink {shown}: `shoal sink status` lists them")
    return found, url


async def _send(store: Store, named: tuple[str, ...], *, follow: bool, screen: Screen) -> list[dict[str, Any]]:
    """Send to the named sinks; returns the result for each."""
    from shoal.sinks.pump import SinkPump, open_sinks_of

    chosen = [await _matching(store, one) for one in named or (None,)]
    chosen_ids = {state.id for states, _ in chosen for state in states}
    found = await open_sinks_of(store.outbox, None, [url for _, url in chosen if url is not None], only=chosen_ids)
    for line in found.refusals:
        screen.say(line)
    pumps = [SinkPump(opened, outbox=store.outbox, say=screen.say) for opened in found.open]
    await _pump(pumps, follow=follow, say=screen.say)
    states = {state.id: state for state in await store.outbox.sinks()}
    sent = {pump.to.id: pump.sent for pump in pumps}
    return [
        {"sink": _shown(state), "sent": sent.get(state.id, 0), "waiting": state.waiting, "trouble": state.trouble}
        for state in states.values()
        if state.id in chosen_ids
    ]


async def _pump(pumps: list[SinkPump], *, follow: bool, say: Callable[[str], None]) -> None:
    import asyncio
    import signal

    from shoal.sinks.pump import pumping

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with pumping(pumps, stop=stop, grace_seconds=5.0):
        if follow:
            say("sending changes as they come; Ctrl-C ends")
            await stop.wait()


def _show_ends(ends: list[dict[str, Any]], screen: Screen, *, as_json: bool) -> int:
    if as_json:
        screen.json(ends)
    for end in ends if not as_json else ():
        waits = f", {count(end['waiting'])} still wait" if end["waiting"] else ""
        screen.line(f"{several(end['sent'], 'change')} sent to {end['sink']}{waits}")
    return int(any(end["waiting"] for end in ends))
