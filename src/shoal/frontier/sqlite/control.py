"""Rare changes to crawls, which may take long: open, pause, resume, cancel, feed, forget keys, clear dead letters."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from shoal.errors import UsageError
from shoal.frontier.rules.constants import EPOCHS_PER_CRAWL, STAYER
from shoal.frontier.rules.exits import check_exits
from shoal.frontier.rules.hosts import ALONE, DELETING, SHARED, effective_weight
from shoal.frontier.rules.tasks import DROPPED, decoded, encoded, losses_of_requeued, outcome_of, unreadable_crawl
from shoal.frontier.sqlite import pools
from shoal.frontier.sqlite.ledger import Ledger
from shoal.frontier.sqlite.put import change_ttl, expire_keys, forget_ended, ids_of, retire
from shoal.frontier.sqlite.rows import CANCELLED, DEAD, DELAYED, QUEUED, Moment
from shoal.model import REGION, STAGE, VIA, Budgets, Crawl, CrawlState, DeadCount, DeadFilter, Pool

_AMONG = f"SELECT lane, reason FROM task WHERE crawl = :crawl AND state = {DEAD} AND at >= :since AND at <= :until"
_COUNT_DEAD = (
    f"SELECT count(*) FROM ({_AMONG} AND (:key IS NULL OR key = :key) ORDER BY at DESC, id DESC LIMIT :most)"
    " WHERE (:lane IS NULL OR lane = (SELECT id FROM lane WHERE crawl = :crawl AND name = :lane))"
    " AND (:reason IS NULL OR substr(reason, 1, length(:reason)) = :reason)"
)
_HAS_MORE = f"SELECT EXISTS ({_AMONG} AND :key IS NULL LIMIT 1 OFFSET :most)"
_CRAWLS = (
    "SELECT name, spider, state, interval, cap, needs_rules, max_pages, max_per_lane, max_per_shape, max_cost,"
    " settings, pools, feeding, dedup_ttl, created, finished, limits, keys, apart, weight, fastest FROM crawl"
    " JOIN crawl_about ON crawl_about.crawl = crawl.id"
)

_SETTINGS = 10  # the index of the settings among these columns


def load(db: sqlite3.Connection, name: str, *, at: Moment) -> Ledger:
    """The crawl's ledger; raises UsageError for an unknown crawl."""
    ledger = Ledger.load(db, name, at=at)
    if ledger is None:
        raise UsageError(f"there is no crawl {name!r}; `shoal status` lists them")
    return ledger


def open_crawl(db: sqlite3.Connection, crawl: Crawl, *, at: Moment) -> Crawl | None:
    """Create or change the crawl; None: a half-deleted crawl of this name must be deleted first."""
    if crawl.dedup != "exact":
        raise UsageError(
            f"dedup {crawl.dedup!r} needs a Redis frontier: set dedup to exact, or use --frontier redis://…"
        )
    check_exits(crawl.pools)
    found = db.execute("SELECT state, id, interval, cap, fastest FROM crawl WHERE name = ?", (crawl.id,)).fetchone()
    if found and found[0] == DELETING:
        return None
    if found:
        _take_over(db, crawl, found[1:], at=at)
    else:
        _create(db, crawl, now=at.wall)
    return _crawl(db.execute(f"{_CRAWLS} WHERE name = ?", (crawl.id,)).fetchone())


def _take_over(db: sqlite3.Connection, crawl: Crawl, former: tuple[int, float, int, float], *, at: Moment) -> None:
    """Change settings and limits of an existing crawl. Lanes that have the crawl's pace get the new one."""
    row_id, interval, cap, fastest = former
    budgets = crawl.budgets
    db.execute(
        "UPDATE crawl SET interval = ?, cap = ?, needs_rules = ?, max_pages = ?, max_per_lane = ?, max_per_shape = ?,"
        " max_cost = ?, limits = ?, share = ?, fastest = ? WHERE id = ?",
        (
            crawl.interval, crawl.cap, crawl.needs_rules, budgets.pages, budgets.per_lane, budgets.per_shape,
            budgets.cost, encoded(crawl.limits), effective_weight(crawl.weight, crawl.priority), crawl.fastest, row_id,
        ),
    )  # fmt: skip
    ledger = load(db, crawl.id, at=at)
    now = ledger.now
    change_ttl(ledger, crawl.dedup_ttl)
    about = (msgspec.json.encode(crawl.settings), crawl.weight, row_id)
    db.execute("UPDATE crawl_about SET settings = ?, weight = ? WHERE crawl = ?", about)
    old_pools = {pool.name: pool for pool in pools.take_over(db, row_id, crawl.pools, now=now)}
    direct = f"(name NOT LIKE '%{VIA}%' OR instr(name, '{VIA}{REGION}')) AND name NOT LIKE '%{STAGE}%'"
    _change_pace(db, row_id, direct, old=(interval, cap), new=(crawl.interval, crawl.cap), now=now)
    if crawl.fastest != fastest:
        _stay_within(db, row_id, direct, fastest=crawl.fastest)
    for new in crawl.pools:
        if old := old_pools.get(new.name):
            paces = (old.host_interval, old.host_cap), (new.host_interval, new.host_cap)
            via = "substr(name, instr(name, :via)) = :via || :pool"
            _change_pace(db, row_id, via, old=paces[0], new=paces[1], now=now, pool=new.name, via=VIA)
    if ledger.kinds is not None:
        ledger.kinds.refresh()


def _change_pace(
    db: sqlite3.Connection, row_id: int, which: str, *, old: tuple[float, int], new: tuple[float, int], **values: object
) -> None:
    """Give lanes that have the crawl's or the pool's pace the new one: `follow_pace` of the rules as one statement,
    because there may be a million lanes."""
    db.execute(
        f"UPDATE lane SET cap = :new WHERE crawl = :crawl AND {which} AND cap = :old",
        {"new": new[1], "old": old[1], "crawl": row_id, **values},
    )
    if new[0] != old[0]:
        db.execute(
            "UPDATE lane SET interval = CASE WHEN interval = base_interval THEN :new ELSE interval END,"
            f" sharing = iif(sharing = {ALONE}, {SHARED}, sharing),"
            " base_interval = :new, next_start = max(last_start + :new, blocked_until, min(next_start, :now))"
            f" WHERE crawl = :crawl AND {which} AND base_interval = :old",
            {"new": new[0], "old": old[0], "crawl": row_id, **values},
        )


def _stay_within(db: sqlite3.Connection, row_id: int, which: str, *, fastest: float) -> None:
    """Slow down lanes that are faster than searches may now make them."""
    least = "iif(:fastest, min(:fastest, base_interval), base_interval)"
    db.execute(
        f"UPDATE lane SET interval = {least}, next_start = max(next_start, last_start + {least}),"
        f" sharing = iif(sharing = {ALONE}, {SHARED}, sharing)"
        f" WHERE crawl = :crawl AND {which} AND interval < {least}",
        {"fastest": fastest, "crawl": row_id},
    )


def _create(db: sqlite3.Connection, crawl: Crawl, *, now: float) -> None:
    budgets = crawl.budgets
    row_id = db.execute(
        "INSERT INTO crawl (name, state, feeding, interval, cap, needs_rules, max_pages, max_per_lane, max_per_shape,"
        " max_cost, cost, dedup_ttl, generation, generation_began, epoch, last_seq, last_token,"
        " queued, delayed, leased, done, dead, cancelled, duplicates, stale, retried, lost, limits, apart, share,"
        " fastest)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, 0, ?, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ?, ?, ?, ?)",
        (
            crawl.id, str(crawl.state), crawl.feeding, crawl.interval, crawl.cap, crawl.needs_rules, budgets.pages,
            budgets.per_lane, budgets.per_shape, budgets.cost, crawl.dedup_ttl, now, encoded(crawl.limits),
            crawl.pace_scope == "crawl", effective_weight(crawl.weight, crawl.priority), crawl.fastest,
        ),
    ).lastrowid  # fmt: skip
    db.execute("UPDATE crawl SET epoch = id * ? WHERE id = ?", (EPOCHS_PER_CRAWL, row_id))
    db.execute(
        "INSERT INTO crawl_about (crawl, spider, settings, pools, exit_names, created, weight)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            row_id, crawl.spider, msgspec.json.encode(crawl.settings), msgspec.json.encode(crawl.pools),
            pools.encode_names(crawl.pools, {}), crawl.created or now, crawl.weight,
        ),
    )  # fmt: skip


def crawls(db: sqlite3.Connection, path: object) -> list[Crawl]:
    """All crawls, newest first. A crawl whose settings cannot be read has a `refusal`."""
    return [
        _listed(row, path) for row in db.execute(f"{_CRAWLS} WHERE state <> 'deleting' ORDER BY created DESC, id DESC")
    ]


def _listed(row: tuple[Any, ...], path: object) -> Crawl:
    try:
        settings = msgspec.json.decode(row[_SETTINGS], type=dict[str, Any])
    except (msgspec.DecodeError, TypeError) as error:
        sound = _crawl((*row[:_SETTINGS], b"{}", *row[_SETTINGS + 1 :]))
        return msgspec.structs.replace(sound, refusal=unreadable_crawl(sound.id, path, error))
    return _crawl(row, settings)


def set_state(ledger: Ledger, state: CrawlState, *, reason: str) -> None:
    crawl = ledger.crawl
    if state == CrawlState.FINISHED:
        raise UsageError("a crawl finishes by itself: pause, resume or cancel it")
    if crawl.state in (CrawlState.FINISHED, state):
        return
    if crawl.state == CrawlState.CANCELLED:
        _restore(ledger)
    if state == CrawlState.CANCELLED:
        _cancel(ledger)
    crawl.state = state
    if state == CrawlState.RUNNING:
        ledger.begin_to_run()
    crawl.finished = ledger.wall if state in (CrawlState.CANCELLED, CrawlState.STOPPED) else None
    ledger.db.execute("UPDATE crawl_about SET reason = ? WHERE crawl = ?", (reason, crawl.id))
    ledger.flush()


def set_feeding(ledger: Ledger, feeder: str, *, seconds: float, makes_up: float | None) -> None:
    db, crawl, now = ledger.db, ledger.crawl, ledger.now
    if seconds > 0:
        ledger.check_keys()
    forget = "DELETE FROM feeder WHERE crawl = ? AND until <= ? AND (substr(name, 1, ?) = ?) = ?"
    db.execute(forget, (crawl.id, now, len(STAYER), STAYER, True))
    if makes_up is not None:
        db.execute(forget, (crawl.id, now + makes_up, len(STAYER), STAYER, False))
    if seconds > 0:
        insert = "INSERT OR REPLACE INTO feeder (crawl, name, until) VALUES (?, ?, ?)"
        db.execute(insert, (crawl.id, feeder, now + seconds))
        crawl.feeding = 1
        ledger.revive()
    else:
        db.execute("DELETE FROM feeder WHERE crawl = ? AND name = ?", (crawl.id, feeder))
        others = db.execute("SELECT 1 FROM feeder WHERE crawl = ? AND until > ?", (crawl.id, now)).fetchone()
        crawl.feeding = int(others is not None)
    ledger.flush()


def forget(ledger: Ledger, keys: Sequence[int]) -> None:
    """Done keys become unknown; so do dead ones, and their letters are dropped."""
    crawl = ledger.crawl
    # Reads all tasks of the crawl: waiting tasks have no index by key.
    rows = ledger.db.execute(
        "SELECT key, id, state, reason FROM task WHERE id BETWEEN ? AND ? AND key IN (SELECT value FROM json_each(?))",
        (*ids_of(crawl.id), msgspec.json.encode(list(keys)).decode()),
    ).fetchall()
    alive = {key for key, _, state, _ in rows if state != DEAD}
    forget_ended(ledger, keys)
    _drop(ledger, [(row_id, reason) for _, row_id, state, reason in rows if state == DEAD])
    forgotten = [(crawl.id, key) for key in dict.fromkeys(keys) if key not in alive]
    ledger.db.executemany("DELETE FROM seen WHERE crawl = ? AND key = ?", forgotten)
    crawl.epoch += 1
    ledger.flush()


def requeue_dead(ledger: Ledger, which: DeadFilter, *, limit: int) -> int:
    rows = dead_rows(ledger, "task.id, task.lane, task.reason, task.kind", which, limit=limit, lendable=True)
    if rows:
        ledger.check_keys()
        ledger.revive()
    changes = []
    for row_id, lane_id, reason, kind in rows:
        ledger.count(DEAD, -1)
        ledger.tally("outcome", outcome_of(reason), -1)
        changes.append((*ledger.wait(ledger.lane_by_id(lane_id), kind=kind), losses_of_requeued(reason), row_id))
    ledger.db.executemany(
        "UPDATE task SET state = ?, at = ?, attempts = 0, free_retries = 0, losses = ?, reason = '', detail = ''"
        " WHERE id = ?",
        changes,
    )
    ledger.flush()
    return len(rows)


def drop_dead(ledger: Ledger, which: DeadFilter, *, limit: int) -> int:
    expire_keys(ledger)
    rows = dead_rows(ledger, "task.id, task.reason, task.key", which, limit=limit)
    retire(ledger, [key for *_, key in rows])
    _drop(ledger, [(row_id, reason) for row_id, reason, _ in rows])
    ledger.flush()
    return len(rows)


def count_dead(ledger: Ledger, which: DeadFilter, *, most: int) -> DeadCount:
    times = {"since": which.since or 0.0, "until": math.inf if which.until is None else which.until}
    values = msgspec.structs.asdict(which) | times | {"crawl": ledger.crawl.id, "most": most}
    (matching,) = ledger.db.execute(_COUNT_DEAD, values).fetchone()
    (has_more,) = ledger.db.execute(_HAS_MORE, values).fetchone()
    return DeadCount(matching=matching, is_least=bool(has_more))


def dead_rows(
    ledger: Ledger, columns: str, which: DeadFilter, *, limit: int, lendable: bool = False
) -> list[tuple[Any, ...]]:
    """Rows of the dead letters that match, newest first; `lendable`: only of tasks that allow an attempt."""
    tests = {
        "lane.name = :lane": which.lane,
        "substr(task.reason, 1, length(:reason)) = :reason": which.reason,
        "task.at >= :since": which.since,
        "task.key = :key": which.key,
        "task.at <= :until": which.until,
    }
    where = " AND ".join(
        ["task.crawl = :crawl", f"task.state = {DEAD}", *(t for t, v in tests.items() if v is not None)]
    )
    if lendable:
        where += " AND task.max_attempts > 0"
    select = (
        f"SELECT {columns} FROM task JOIN lane ON lane.id = task.lane WHERE {where}"
        " ORDER BY task.at DESC, task.id DESC LIMIT :limit"
    )
    return ledger.db.execute(
        select, msgspec.structs.asdict(which) | {"crawl": ledger.crawl.id, "limit": limit}
    ).fetchall()


def _drop(ledger: Ledger, rows: Sequence[tuple[Any, ...]]) -> None:
    """Delete dead letters, given as (id, reason), and count them as done."""
    for _, reason in rows:
        ledger.tally("outcome", outcome_of(reason), -1)
        ledger.tally("outcome", DROPPED)
    ledger.count(DEAD, -len(rows))
    ledger.crawl.done += len(rows)
    ledger.db.executemany("DELETE FROM task WHERE id = ?", [(row_id,) for row_id, _ in rows])


def _cancel(ledger: Ledger) -> None:
    """Cancel the waiting tasks. Their rows stay: a cancelled crawl can be resumed."""
    crawl = ledger.crawl
    ledger.db.execute(
        f"UPDATE task SET state = {CANCELLED} WHERE id BETWEEN ? AND ? AND state IN ({QUEUED}, {DELAYED})",
        ids_of(crawl.id),
    )
    ledger.db.execute("UPDATE lane SET waiting = 0 WHERE crawl = ?", (crawl.id,))
    ledger.db.execute("UPDATE lane_kind SET waiting = 0 WHERE crawl = ?", (crawl.id,))
    crawl.cancelled += crawl.queued + crawl.delayed
    crawl.queued = crawl.delayed = 0


def _restore(ledger: Ledger) -> None:
    crawl, db, now = ledger.crawl, ledger.db, ledger.now
    db.execute(
        f"UPDATE task SET state = iif(at > ?, {DELAYED}, {QUEUED}) WHERE id BETWEEN ? AND ? AND state = {CANCELLED}",
        (now, *ids_of(crawl.id)),
    )
    for table, lane, kind in (("lane", "id", "0"), ("lane_kind", "lane", "lane_kind.kind")):
        waiting = f"SELECT count(*) FROM task WHERE task.lane = {table}.{lane} AND kind = {kind} AND state = {QUEUED}"
        db.execute(f"UPDATE {table} SET waiting = ({waiting}) WHERE crawl = ?", (crawl.id,))
    others = "SELECT lane FROM lane_kind WHERE crawl = ? AND waiting > 0"
    db.execute(
        f"UPDATE lane SET next_start = max(next_start, ?) WHERE crawl = ? AND (waiting > 0 OR id IN ({others}))",
        (now, crawl.id, crawl.id),
    )
    if ledger.kinds is not None:
        ledger.kinds.refresh()
    crawl.queued = sum(
        db.execute(f"SELECT coalesce(sum(waiting), 0) FROM {table} WHERE crawl = ?", (crawl.id,)).fetchone()[0]
        for table in ("lane", "lane_kind")
    )
    crawl.delayed = crawl.cancelled - crawl.queued
    crawl.cancelled = 0


def _crawl(row: tuple[Any, ...], known: dict[str, Any] | None = None) -> Crawl:
    (
        name,
        spider,
        state,
        interval,
        cap,
        needs_rules,
        *budgets,
        settings,
        pools,
        feeding,
        ttl,
        created,
        finished,
        limits,
        keys,
        apart,
        weight,
        fastest,
    ) = row
    return Crawl(
        id=name,
        spider=spider,
        state=CrawlState(state),
        interval=interval,
        cap=cap,
        needs_rules=bool(needs_rules),
        budgets=Budgets(pages=budgets[0], per_lane=budgets[1], per_shape=budgets[2], cost=budgets[3]),
        settings=msgspec.json.decode(settings) if known is None else known,
        pools=msgspec.json.decode(pools, type=tuple[Pool, ...]),
        feeding=bool(feeding),
        created=created,
        finished=finished,
        limits=decoded(limits),
        dedup_ttl=ttl,
        keys=keys,
        pace_scope="crawl" if apart else "host",
        weight=weight,
        fastest=fastest,
    )
