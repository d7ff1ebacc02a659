"""`shoal alerts`: the alerts that fire now, and a test message to every target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.display.numbers import moment
from shoal.cli.display.screen import Screen
from shoal.cli.options import json_option, place_options

if TYPE_CHECKING:
    from shoal.crawl.opening import Places
    from shoal.duties.alerts.config import AlertConfig, Target
    from shoal.duties.alerts.state import Alert

HOW = "write [alerts] and [[alerts.to]] into shoal.toml"


@click.group(short_help="Alerts that fire now; test whether messages arrive.")
def alerts() -> None:
    """Alerts that fire now; test whether messages arrive.

    \b
    Example: shoal alerts test
    """


@alerts.command("list", short_help="Show the alerts that fire now or may fire soon.")
@place_options(store=False)
@json_option
def list_(*, places: Places, as_json: bool) -> None:
    """Show the alerts that fire now or may fire soon.

    \b
    Example: shoal alerts list --frontier redis://queue.internal/0
    """
    from shoal.cli.loop import run

    found = run(_read(places))
    screen = Screen()
    if as_json:
        screen.json([_document(alert) for alert in found])
        return
    if not found:
        screen.line("no alert fires")
        return
    rows = [(alert.alert, state_of(alert), moment(alert.since), alert.text) for alert in found]
    screen.table(("alert", "state", "since", "what"), rows, whole=("alert", "state"))


@alerts.command(short_help="Send a test message to every target of alerts.")
@click.argument("name", required=False)
@json_option
def test(name: str | None, *, as_json: bool) -> int:
    """Send a test message to every [[alerts.to]] in shoal.toml, or to the one called NAME. Returns 1 if one of them
    failed.

    \b
    Example: shoal alerts test ops
    """
    from shoal.cli.loop import run

    results = run(_try(_targets(name)))
    screen = Screen()
    if as_json:
        screen.json([{"to": to, "kind": kind, "problem": problem} for to, kind, problem in results])
    else:
        rows = [(to, kind, f"not sent: {problem}" if problem else "sent") for to, kind, problem in results]
        screen.table(("to", "kind", "result"), rows, whole=("to", "kind"))
    return int(any(problem for _, _, problem in results))


def state_of(alert: Alert) -> str:
    """The state of an alert in a word or two."""
    if not alert.is_firing:
        return "may fire"
    return "may be over" if alert.absent else "fires"


def _document(alert: Alert) -> dict[str, Any]:
    about = {"alert": alert.alert, "crawl": alert.crawl, "about": alert.about, "text": alert.text}
    return {**about, "state": state_of(alert), "since": alert.since, "fired": alert.fired or None}


async def _read(places: Places) -> list[Alert]:
    from shoal.crawl.opening import frontier_at
    from shoal.duties.alerts.watcher import alerts_now

    async with frontier_at(places.frontier) as frontier:
        return await alerts_now(frontier)


def _targets(name: str | None) -> tuple[Target, ...]:
    from shoal.errors import UsageError
    from shoal.text.near_names import did_you_mean

    config = _config()
    names = [target.name for target in config.targets]
    if name is not None and name not in names:
        raise UsageError(
            f"no [[alerts.to]] is called {name!r}: {did_you_mean(name, names, otherwise=', '.join(names))}"
        )
    return tuple(target for target in config.targets if name in (None, target.name))


def _config() -> AlertConfig:
    from shoal.duties.alerts.config import load_alerts
    from shoal.errors import UsageError
    from shoal.settings.table import CONFIG_FILE

    config = load_alerts(Path(CONFIG_FILE))
    if config is None:
        raise UsageError(f"there are no alerts here: {HOW}")
    return config


async def _try(targets: tuple[Target, ...]) -> list[tuple[str, str, str]]:
    import asyncio
    import time

    from shoal.duties.alerts.senders import NotSent, send
    from shoal.duties.alerts.state import Alert, message_of

    now = time.time()
    made = Alert(alert="test", text="this is a test, nothing is wrong", since=now, fired=now)
    message = message_of(made, "test", now=now)

    async def one(target: Target) -> tuple[str, str, str]:
        try:
            await send(target, message)
        except NotSent as error:
            return target.name, target.kind, str(error)
        return target.name, target.kind, ""

    return await asyncio.gather(*map(one, targets))
