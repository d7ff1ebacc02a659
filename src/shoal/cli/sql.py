"""`shoal sql`: runs a SQL query on the items and the fetch log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shoal.cli.display.lines import shown
from shoal.cli.display.screen import Screen
from shoal.cli.options import store_option
from shoal.crawl.places import check_store_exists

if TYPE_CHECKING:
    from shoal.store.base import QueryAnswer

ROWS = 1000


@click.command(short_help="Query the store with SQL.")
@click.argument("statement")
@store_option
@click.option("--json", "as_json", is_flag=True, help="JSON Lines on stdout, for scripts.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), default=ROWS, show_default=True, help="Most rows to show."
)
def sql(statement: str, *, store: str, as_json: bool, limit: int) -> None:
    """Query the store with SQL: a table on a terminal, tab-separated lines in a pipe. Only reading statements are run.

    \b
    The tables: items, items_changed, item_versions, fetches.
    Example: shoal sql "SELECT host, count(*) FROM fetches GROUP BY host"
    Example: shoal sql "SELECT data ->> 'title' FROM items WHERE version > 1"
    """
    from shoal.cli.loop import run

    check_store_exists(store)
    run(_ask(statement, url=store, as_json=as_json, limit=limit))


async def _ask(statement: str, *, url: str, as_json: bool, limit: int) -> None:
    from shoal.crawl.opening import store_at

    async with store_at(url) as store:
        answer = await store.query(statement, limit=limit)
    screen = Screen()
    _show(answer, screen, as_json=as_json)
    if answer.has_more:
        screen.say(f"more rows exist: these are the first {limit:,}, --limit shows more")


def _show(answer: QueryAnswer, screen: Screen, *, as_json: bool) -> None:
    if as_json:
        for row in answer.rows:
            screen.json(dict(zip(answer.columns, map(_plain, row), strict=True)))
    elif screen.out.is_terminal:
        screen.table(answer.columns, [["" if cell is None else cell for cell in row] for row in answer.rows])
    else:
        for row in (answer.columns, *answer.rows):
            screen.out.file.write("\t".join(map(_cell, row)) + "\n")


def _cell(value: Any) -> str:
    text = "" if value is None else value.hex() if isinstance(value, bytes) else str(value)
    for plain, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(plain, escaped)
    return shown(text)


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value
