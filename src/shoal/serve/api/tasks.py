"""Tasks over HTTP: dead letters, what was kept out, what became of a URL."""

from __future__ import annotations

from typing import Any

from shoal.frontier.rules.keys import key_given, key_shown
from shoal.insight.why import Choice, Fate, document, fates_of
from shoal.model import Crawl, DeadCount, DeadFilter, DeadLetter
from shoal.run.steering import clear_dead, lane_given
from shoal.serve.answers import Refusal, cursor, position
from shoal.serve.api.operations import Call
from shoal.serve.api.shapes import (
    Dropped,
    Fates,
    LetterChoice,
    Letters,
    LetterShown,
    LettersQuery,
    Rejected,
    RejectedReason,
    Requeued,
)
from shoal.store.base import Store
from shoal.text.secrets import masked_text
from shoal.urls.scope import REASONS

REASONS_SHOWN = 100
# The most letters with the same time that a page may begin after.
MOST_OF_A_MOMENT = 100_000


async def list_dead(call: Call) -> Letters:
    """Dead letters that match every parameter, newest first. `reason` matches the beginning of a reason."""
    wanted: LettersQuery = call.query
    until, passed = (None, 0) if wanted.after is None else position(wanted.after, tuple[float, int])
    passed = max(0, min(passed, MOST_OF_A_MOMENT))
    which = _filter(wanted.host, wanted.reason, wanted.since, until=until)
    async with call.reading() as (frontier, crawl):
        found = await frontier.dead(crawl.id, which, limit=passed + wanted.limit + 1)
        total = (await frontier.progress(crawl.id)).dead
        wide = _filter(wanted.host, wanted.reason, wanted.since)
        counted = DeadCount(matching=total) if wide == DeadFilter() else await frontier.count_dead(crawl.id, wide)
    page = found[passed : passed + wanted.limit]
    more = len(found) > passed + wanted.limit
    then = cursor(_place(found[: passed + wanted.limit])) if more else None
    return Letters(
        letters=[_letter(letter) for letter in page],
        total=total,
        matching=counted.matching,
        matching_is_least=counted.is_least,
        next=then,
    )


def _place(passed: list[DeadLetter]) -> tuple[float, int]:
    """The position of the next page: the time of the last letter, and how many letters of that time were shown."""
    last = passed[-1].at
    return last, sum(letter.at == last for letter in passed)


def _letter(letter: DeadLetter) -> LetterShown:
    task = letter.task
    return LetterShown(
        key=key_shown(task.key),
        url=task.url,
        host=task.lane,
        reason=letter.reason,
        detail=letter.detail,
        attempts=letter.attempts,
        at=letter.at,
        method=task.method,
        handler=task.handler,
    )


async def requeue_dead(call: Call) -> Requeued:
    """Queue dead letters again; their attempts count from zero."""
    async with call.changing() as (frontier, crawl):
        return Requeued(requeued=await clear_dead(crawl, _chosen(call.body), "requeue", frontier=frontier))


async def drop_dead(call: Call) -> Dropped:
    """Delete dead letters for good."""
    async with call.changing() as (frontier, crawl):
        return Dropped(dropped=await clear_dead(crawl, _chosen(call.body), "drop", frontier=frontier))


def _chosen(choice: LetterChoice) -> DeadFilter:
    fields = (choice.key, choice.host, choice.reason, choice.since)
    is_some = any(field is not None for field in fields)
    if choice.all == is_some:
        raise Refusal(422, 'say which: {"key": …}, any of "host", "reason" and "since", or {"all": true} alone')
    if choice.key is not None and any(field is not None for field in fields[1:]):
        raise Refusal(422, "a key stands alone: leave out the other fields")
    key = None if choice.key is None else key_given(choice.key)
    return _filter(choice.host, choice.reason, choice.since, key=key)


def _filter(
    host: str | None, reason: str | None, since: float | None, *, until: float | None = None, key: int | None = None
) -> DeadFilter:
    lane = None if host is None else lane_given(host)
    return DeadFilter(lane=lane, reason=reason, since=since, until=until, key=key)


async def list_rejected(call: Call) -> Rejected:
    """Why links were kept out, how many, and a few of them."""
    async with call.reading() as (frontier, crawl):
        counts = sorted((await frontier.progress(crawl.id)).rejected.items(), key=lambda pair: -pair[1])
        rows = [
            RejectedReason(
                reason=reason,
                count=number,
                meaning=REASONS.get(reason, ""),
                samples=[masked_text(url) for url in await frontier.samples(crawl.id, reason)],
            )
            for reason, number in counts[:REASONS_SHOWN]
        ]
    return Rejected(reasons=rows)


async def explain_url(call: Call) -> Fates:
    """What became of a URL: every task of it, or the rule that kept it out."""
    choice = Choice(method=call.query.method and call.query.method.upper())
    async with call.reading_long() as (frontier, crawl):

        async def store_of(_: Crawl) -> Store | None:
            # Without the store only the frontier is read, which knows less.
            try:
                return await call.parts.store_of(crawl).opened()
            except Refusal:
                return None

        fates = await fates_of(call.query.url, [crawl], frontier=frontier, store_of=store_of, choice=choice)
    chosen = [fate for fate in fates if choice.has(fate.key, fate.request)]
    return Fates(fates=[_fate(fate) for fate in chosen])


def _fate(fate: Fate) -> dict[str, Any]:
    """The fate with its keys as text: not every language has 64-bit integers."""
    shown = document(fate)
    lines = shown["attempts"] if shown["fetch"] is None else [shown["fetch"], *shown["attempts"]]
    for keyed in (shown, *lines):
        keyed["key"] = key_shown(keyed["key"])
    for line in lines:
        line["parent"] = None if line["parent"] is None else key_shown(line["parent"])
    return shown
