"""The summary of a crawl: counts by outcome, links kept out, where the items are, the next command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from shoal.cli.display.lines import one_line, shown
from shoal.cli.display.next_commands import command, commands, quote
from shoal.cli.display.numbers import count, duration, per_second, several
from shoal.cli.display.screen import Screen
from shoal.cli.display.slips import Slips, slip_lines
from shoal.crawl.opening import Places
from shoal.frontier.rules.tasks import BAD_RECORD
from shoal.model import CrawlState
from shoal.policy.failures import Failure, code_line_in, shown_failures
from shoal.sinks.pump import SinkReport
from shoal.urls.scope import REASONS

OUTCOMES = {
    "ok": "handled by the spider",
    "redirected": "redirects, followed",
    "not_modified": "not changed since the last fetch (304)",
    "robots": "not fetched: robots.txt disallows them",
    "dropped": "dead letters that were dropped",
    "http_404": "not found",
    "http_410": "gone",
    "http_403": "forbidden",
    "http_401": "asked for a login",
    "handler": "the spider's handler raised",
    "inbox": "inbox entries that could not be used",
    "unstorable": "an item that no store accepts",
    BAD_RECORD: "its record in the frontier could not be read",
    "worker lost": "the page ended its worker process at each attempt",
    "refused_address": "a private or special address: --allow-private lets requests go there",
    "dns": "no address for the host's name",
    "connect": "no connection",
    "tls": "no secure connection",
    "timeout_connect": "no connection in time",
    "timeout_first_byte": "no answer in time",
    "timeout_idle": "the answer stopped coming",
    "timeout_total": "the answer took too long",
    "truncated": "the answer ended early",
    "too_large": "more bytes than max_body_bytes",
    "bomb": "grew too much by decompression: max_ratio, max_body_bytes",
    "redirect_loop": REASONS["redirect_loop"],
}
MERGED = "merged"  # counted with the duplicates
_SITEMAPS_SHOWN = 3


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a run. `pages` and `seconds` are of this run, the counts of the whole crawl.

    failures: why pages failed, the most frequent reason first. faults: why the crawl failed, a sentence each. reason:
    why it is paused or stopped. stayed: a --stay run was stopped with no task left. raise_to: the settings that
    continue it after a limit stopped it."""

    crawl: str
    spider: str
    state: CrawlState
    resumed: bool
    interrupted: bool
    seconds: float
    pages: int
    pages_per_second: float
    done: int
    dead: int
    left: int
    cancelled: int
    retried: int
    lost: int
    duplicates: int
    outcomes: dict[str, int]
    rejected: dict[str, int]
    items: int
    store: str
    output: tuple[str, ...]
    robots_ignored: bool
    failures: list[Failure] = msgspec.field(default_factory=list)
    faults: list[str] = msgspec.field(default_factory=list)
    reason: str = ""
    slips: Slips = Slips()
    bad_sitemaps: list[str] = msgspec.field(default_factory=list)
    set_aside: str = ""
    sinks: list[SinkReport] = msgspec.field(default_factory=list)
    stayed: bool = False
    raise_to: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def is_failure(self) -> bool:
        """Whether the crawl failed as a whole: too many pages did, or every start URL."""
        return bool(self.faults)


def show_summary(summary: Summary, screen: Screen, *, places: Places, more: Iterable[tuple[str, str]] = ()) -> None:
    """Show the summary. more: further lines at the end."""
    screen.heading(headline(summary))
    screen.table(("pages", "outcome", ""), _outcome_rows(summary), right=("pages",))
    by_number = sorted(summary.rejected.items(), key=lambda pair: (-pair[1], pair[0]))
    if kept_out := [(count(number), name, REASONS.get(name, "")) for name, number in by_number if name != MERGED]:
        screen.line()
        screen.table(("links", "kept out", ""), kept_out, right=("links",))
    screen.line()
    screen.pairs([*_facts(summary, places), *more], indent="")


def headline(summary: Summary) -> str:
    """The run in one line."""
    how = (
        "interrupted"
        if summary.interrupted
        else "left open, nothing left to do"
        if summary.stayed
        else str(summary.state)
    )
    took = f"{duration(summary.seconds)} ({per_second(summary.pages_per_second)})"
    return f"{summary.crawl} {how}: {several(summary.pages, 'page')} in {took}"


def _outcome_rows(summary: Summary) -> Iterator[tuple[str, str, str]]:
    by_number = sorted(summary.outcomes.items(), key=lambda pair: (pair[0] != "ok", -pair[1], pair[0]))
    for name, number in by_number:
        yield count(number), name, OUTCOMES.get(name, "")
    if summary.left:
        yield count(summary.left), "left", "still to do"
    if summary.cancelled:
        yield count(summary.cancelled), "cancelled", "set aside"


def _facts(summary: Summary, places: Places) -> Iterator[tuple[str, str]]:
    merged = summary.rejected.get(MERGED, 0)
    spelt = f", {count(merged)} of them in another spelling" if merged else ""
    if summary.duplicates:
        yield "known", f"{several(summary.duplicates, 'link')} led to known pages{spelt}"
    if summary.retried or summary.lost:
        lost = f", {several(summary.lost, 'task')} reclaimed from lost workers" if summary.lost else ""
        yield "retries", f"{count(summary.retried)}{lost}"
    if summary.failures:
        yield "failed", f"{several(sum(one.pages for one in summary.failures), 'page')}: {_named(summary.failures)}"
    if summary.dead:
        yield "dead", f"{count(summary.dead)}: {command(f'dead list {quote(summary.crawl)}', places)}"
    if summary.cancelled:
        yield "cancelled", f"{count(summary.cancelled)}: {command(f'resume {quote(summary.crawl)}', places)}"
    where = " and ".join([summary.store, *summary.output])
    yield "items", f"{count(summary.items)} in {where}"
    for end in summary.sinks:
        other = "" if end.is_ours else " until another process sends them"
        waits = f", {count(end.waiting)} still wait{other}" if end.waiting else ""
        yield "sink", f"{several(end.sent, 'change')} sent to {end.sink}{waits}"
    yield from slip_lines(summary.slips, stored=summary.items)
    yield from _odd_facts(summary)
    if summary.reason:
        yield str(summary.state), shown(summary.reason)
    if summary.faults:
        yield "code 1", "; ".join(summary.faults)


def _odd_facts(summary: Summary) -> Iterator[tuple[str, str]]:
    """Facts that most crawls do not have."""
    for problem in summary.bad_sitemaps[:_SITEMAPS_SHOWN]:
        yield "sitemap", one_line(problem)
    if summary.set_aside and summary.set_aside not in summary.faults:
        yield "records", summary.set_aside
    if summary.robots_ignored:
        yield "robots", "robots.txt was ignored"


def _named(failures: Sequence[Failure]) -> str:
    """The most frequent reasons of failures in one line."""
    parts = shown_failures(failures)
    names = [f"{shown(described(failure))} ({count(failure.pages)})" for failure in parts]
    return ", ".join(names) + (", …" if len(failures) > len(parts) else "")


def described(failure: Failure) -> str:
    """A reason with its message and its place, such as KeyError: 'price' at books.py:14."""
    message = f": {failure.message}" if failure.message else ""
    return f"{failure.reason}{message}{f' at {failure.at}' if failure.at else ''}"


def _mend(summary: Summary, places: Places, *, again: str) -> str:
    """What to do after a handler failed on each of its first pages."""
    lines = [f"dead requeue {quote(summary.crawl)}" if summary.dead else "", again]
    then = commands(filter(None, lines), places)
    if not again:
        then += " and run the same command again" if then else "run the same command again"
    return f"fix {code_line_in(summary.reason) or 'the handler'}, then: {then}"


def _resume(summary: Summary, places: Places, *, again: str) -> str:
    """The command that continues a stopped crawl, with a higher limit if a limit stopped it."""
    if not (changes := summary.raise_to):
        return command(again, places) if again else "run the same command again to resume"
    options = " ".join(f"--set {quote(f'{name}={value}')}" for name, value in changes.items())
    again = re.sub(rf" --set ({'|'.join(changes)})=\S+", "", again)
    return command(f"{again} {options}", places) if again else f"run the same command with {options}"


def next_step(summary: Summary, places: Places, *, again: str = "") -> str:
    """The command that people probably need next. again: the command that resumes the crawl."""
    if summary.interrupted:
        return "run the same command again to resume"
    if summary.reason and summary.state is CrawlState.PAUSED:
        return _mend(summary, places, again=again)
    if summary.is_failure and summary.dead:
        return command(f"dead list {quote(summary.crawl)} -v", places)
    if summary.state is CrawlState.STOPPED and (summary.left or summary.raise_to):
        return _resume(summary, places, again=again)
    if summary.items and not summary.output:
        return command(f"export {quote(summary.crawl)} -o items.csv", places)
    return command(f"status {quote(summary.crawl)}", places)
