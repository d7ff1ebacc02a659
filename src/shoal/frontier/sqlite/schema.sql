-- The tables of the SQLite frontier. Several processes share them; every verb is one immediate transaction.
-- Times are seconds of the frontier's clock.

-- A crawl and its counters. A counter changes in the same transaction as the tasks it counts.
-- state: of the crawl; 'deleting': hidden from all methods while its rows are being deleted.
-- feeding: 1 while it is fed; without a row in feeder: opened to be fed, and no feeder has come yet.
-- generation, generation_began: of the keys that expire (see past). epoch: rises when known keys become unknown.
-- clock_last: the latest time at which a worker asked for or renewed leases. clock_shift: added to the clock since it was stepped.
-- kinds: the kinds of its tasks besides http, with commas between them, in order of arrival.
-- ran: seconds in which it was running and had workers. limits: conditions that stop it, as JSON; empty: none.
-- keys: 'known', 'dropping' while its keys are being dropped, 'dropped'.
-- apart: 1 if it shares hosts with no other crawl. share: its weight at shared hosts, with its priority.
-- fastest: the shortest interval that its search for a host's pace may reach; 0: it does not search.
CREATE TABLE crawl (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    feeding INTEGER NOT NULL,
    interval REAL NOT NULL,
    cap INTEGER NOT NULL,
    needs_rules INTEGER NOT NULL,
    max_pages INTEGER NOT NULL,
    max_per_lane INTEGER NOT NULL,
    max_per_shape INTEGER NOT NULL,
    max_cost REAL NOT NULL,
    cost REAL NOT NULL,
    finished REAL,
    dedup_ttl REAL NOT NULL,
    generation INTEGER NOT NULL,
    generation_began REAL NOT NULL,
    epoch INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    last_token INTEGER NOT NULL,
    queued INTEGER NOT NULL,
    delayed INTEGER NOT NULL,
    leased INTEGER NOT NULL,
    done INTEGER NOT NULL,
    dead INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    duplicates INTEGER NOT NULL,
    stale INTEGER NOT NULL,
    retried INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    clock_last REAL NOT NULL DEFAULT 0,
    clock_shift REAL NOT NULL DEFAULT 0,
    kinds TEXT NOT NULL DEFAULT '',
    ran REAL NOT NULL DEFAULT 0,
    limits TEXT NOT NULL DEFAULT '',
    keys TEXT NOT NULL DEFAULT 'known',
    apart INTEGER NOT NULL DEFAULT 0,
    share REAL NOT NULL DEFAULT 1,
    fastest REAL NOT NULL DEFAULT 0
);

-- The processes that feed a crawl, each until the time by which it must renew its row. A feeder that has fed everything deletes its
-- row: an expired row is of a lost feeder.
CREATE TABLE feeder (
    crawl INTEGER NOT NULL,
    name TEXT NOT NULL,
    until REAL NOT NULL,
    PRIMARY KEY (crawl, name)
) WITHOUT ROWID;

-- What a crawl was opened with, beside its pace and budgets. Not in crawl, so that the row with the counters stays short.
-- reason: why it was paused, cancelled or stopped, if known. exit_names: by pool, every exit that it ever had; the position of an
-- exit there is its index, which never changes. offers: the exits that workers offer.
CREATE TABLE crawl_about (
    crawl INTEGER PRIMARY KEY,
    spider TEXT NOT NULL,
    settings BLOB NOT NULL,
    pools BLOB NOT NULL,
    exit_names BLOB NOT NULL,
    created REAL NOT NULL,
    reason TEXT NOT NULL DEFAULT '',
    offers BLOB NOT NULL DEFAULT x'',
    weight REAL NOT NULL DEFAULT 1
);

-- Every key that a crawl ever accepted, and nothing else: all that is stored of a finished URL. A key without a row in task is done,
-- or was marked as known without a task. In a crawl whose keys expire (dedup_ttl > 0): only the keys of tasks that have not ended.
CREATE TABLE seen (
    crawl INTEGER NOT NULL,
    key INTEGER NOT NULL,
    PRIMARY KEY (crawl, key)
) WITHOUT ROWID;

-- In a crawl whose keys expire: the keys of ended tasks, by the generation in which they ended. A key is known during its generation
-- and the next two. The current generation is crawl.generation.
CREATE TABLE past (
    crawl INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    key INTEGER NOT NULL,
    PRIMARY KEY (crawl, generation, key)
) WITHOUT ROWID;

-- One row per task that is not done. id = crawl * 2^40 + sequence: rows are appended, ids are never used again.
-- state: 0 queued, 1 delayed, 2 leased, 3 dead, 4 cancelled; statements use the names of `rows.py` for them.
-- ord: its place in the lane's queue: sequence - priority * 2^40.
-- at: when delayed, its due time; when leased, the end of the lease; when dead, the time of death.
-- token: of its last lease; negative when the request has landed and no longer counts in lane.in_flight.
-- losses: leases in a row that were lost with their worker.
-- kind: 0 for http, else the position of its kind in crawl.kinds, from 1 on.
CREATE TABLE task (
    id INTEGER PRIMARY KEY,
    crawl INTEGER NOT NULL,
    key INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    ord INTEGER NOT NULL,
    state INTEGER NOT NULL,
    at REAL NOT NULL,
    max_attempts INTEGER NOT NULL,
    payload BLOB NOT NULL,
    token INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    free_retries INTEGER NOT NULL DEFAULT 0,
    worker TEXT NOT NULL DEFAULT '',
    exit TEXT NOT NULL DEFAULT '',
    reason TEXT NOT NULL DEFAULT '',
    detail TEXT NOT NULL DEFAULT '',
    losses INTEGER NOT NULL DEFAULT 0,
    kind INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX task_queued ON task (lane, kind, ord) WHERE state = 0;
CREATE INDEX task_delayed ON task (crawl, at) WHERE state = 1;
CREATE INDEX task_leased ON task (crawl, at) WHERE state = 2;
-- Settling finds a task by its key here. Waiting tasks have no such index: a lookup reads all tasks of the crawl. Only a file in
-- which visits were hastened has an index of delayed tasks that were leased before: task_visit (put.py).
CREATE INDEX task_held ON task (crawl, key) WHERE state = 2;
CREATE INDEX task_dead ON task (crawl, at) WHERE state = 3;

-- A lane outlives its queue: its next start is the politeness towards its host.
-- waiting: its queued tasks of the kind http; those of other kinds are counted in lane_kind.
-- opener: token of the lease that opens this lane; no other task of the lane is leased before that lease ends.
-- exits: the roster (pools.py) of a lane that goes via a pool; empty for a lane without a pool.
-- exits_next: when one of its exits is free next, as of the last change.
-- sharing: how it stands to the lanes of other crawls with this name (rules/hosts.py). -1 APART: neither reads nor is read. 0 ALONE:
-- no other lane matters now, so it reads none; at most one lane of a name is ALONE. 1 SHARED: reads the others before each start.
-- turn: its starts, each divided by crawl.share.
-- wish: when it wanted to start next, as of the last lease call that reached it; negative if that call got all it asked for, or no
-- task waits. Tells until when the lane wants a start slot and its limits count for others.
CREATE TABLE lane (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    crawl INTEGER NOT NULL,
    name TEXT NOT NULL,
    next_start REAL NOT NULL,
    last_start REAL NOT NULL,
    blocked_until REAL NOT NULL,
    interval REAL NOT NULL,
    base_interval REAL NOT NULL,
    cap INTEGER NOT NULL,
    in_flight INTEGER NOT NULL,
    waiting INTEGER NOT NULL,
    known INTEGER NOT NULL,
    opener INTEGER NOT NULL,
    rules_until REAL NOT NULL,
    rules_version INTEGER NOT NULL,
    exits BLOB NOT NULL,
    exits_next REAL NOT NULL,
    sharing INTEGER NOT NULL DEFAULT 1,
    turn REAL NOT NULL DEFAULT 0,
    wish REAL NOT NULL DEFAULT 0,
    UNIQUE (crawl, name)
);
CREATE INDEX lane_shared ON lane (name) WHERE sharing <> -1;
CREATE INDEX lane_ready ON lane (crawl, max(next_start, exits_next))
    WHERE waiting > 0 AND in_flight < cap AND opener = 0;

-- How many tasks of a lane are queued, per kind other than http. Pace, cap and exits are those of the lane.
-- due: when the lane may start, as of the last change of its row; NULL: not now, because of its cap or its opener.
CREATE TABLE lane_kind (
    lane INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    crawl INTEGER NOT NULL,
    waiting INTEGER NOT NULL,
    due REAL,
    PRIMARY KEY (lane, kind)
) WITHOUT ROWID;
CREATE INDEX lane_kind_ready ON lane_kind (crawl, kind, due, lane) WHERE waiting > 0 AND due IS NOT NULL;

-- The exits of a lane that rest until a time (due): quarantined, parked, or held by another lane.
-- exit_index: the exit's index in its pool.
CREATE TABLE lane_rest (
    lane INTEGER NOT NULL,
    exit_index INTEGER NOT NULL,
    due REAL NOT NULL,
    PRIMARY KEY (lane, exit_index)
) WITHOUT ROWID;
CREATE INDEX lane_rest_due ON lane_rest (lane, due, exit_index);

-- The ended requests through one exit towards one lane, and its failure streak there. Written when a lease ends, never when one
-- begins. exit_index: the exit's index in its pool.
CREATE TABLE lane_exit (
    lane INTEGER NOT NULL,
    exit_index INTEGER NOT NULL,
    requests INTEGER NOT NULL,
    ok INTEGER NOT NULL,
    blocked INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    size INTEGER NOT NULL,
    elapsed REAL NOT NULL,
    cost REAL NOT NULL,
    streak INTEGER NOT NULL DEFAULT 0,
    rests_until REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (lane, exit_index)
) WITHOUT ROWID;

-- The state of an exit for all lanes. Only exits that ever failed, were held or logged in have a row.
-- parked_until: the end of its parking. trial: token of the lease that tries it after that. holder: token of the lease that holds
-- it. session: kept for it, such as cookies; sessions: its version. A row named "cookies EXIT SITE" has only a session.
CREATE TABLE exit (
    crawl INTEGER NOT NULL,
    name TEXT NOT NULL,
    strikes INTEGER NOT NULL,
    struck_lane TEXT NOT NULL,
    parked_until REAL NOT NULL,
    parkings INTEGER NOT NULL,
    trial INTEGER NOT NULL,
    holder INTEGER NOT NULL,
    session BLOB NOT NULL,
    sessions INTEGER NOT NULL,
    PRIMARY KEY (crawl, name)
) WITHOUT ROWID;
CREATE INDEX exit_held ON exit (name) WHERE holder <> 0;

-- How many lanes have begun to use a pool: each begins one exit further than the lane before it.
CREATE TABLE pool_turn (
    crawl INTEGER NOT NULL,
    pool TEXT NOT NULL,
    begun INTEGER NOT NULL,
    PRIMARY KEY (crawl, pool)
) WITHOUT ROWID;

-- A lane's rules. Not in lane, whose row is written at every lease. delay, why: the interval that came with the rules and the reason
-- for it, for lanes of other crawls that take them over.
CREATE TABLE lane_rules (
    lane INTEGER PRIMARY KEY,
    rules BLOB NOT NULL,
    delay REAL NOT NULL DEFAULT 0,
    why TEXT NOT NULL DEFAULT ''
);

-- The interval that a search has found for a lane's host, and until when it is kept.
CREATE TABLE lane_learnt (
    lane INTEGER PRIMARY KEY,
    interval REAL NOT NULL,
    until REAL NOT NULL
);

-- The state of a host that outlives the crawls, until a time: a rest, the last start, rules, the interval that a search has learnt.
-- Times are of the frontier's clock, not of a crawl.
CREATE TABLE host (
    name TEXT PRIMARY KEY,
    last_start REAL NOT NULL,
    blocked_until REAL NOT NULL,
    rules BLOB NOT NULL,
    rules_until REAL NOT NULL,
    delay REAL NOT NULL,
    why TEXT NOT NULL,
    learnt REAL NOT NULL,
    learnt_until REAL NOT NULL,
    until REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX host_until ON host (until);

-- Why a lane rests or is slow (kind 'rest'), and why its own pace is not the crawl's (kind 'pace'), for people. Reasons that are over
-- are not deleted, only not shown.
CREATE TABLE lane_why (
    lane INTEGER NOT NULL,
    kind TEXT NOT NULL,
    why TEXT NOT NULL,
    PRIMARY KEY (lane, kind)
) WITHOUT ROWID;

-- Tasks accepted per lane and path shape, for the budget.
CREATE TABLE shape (
    lane INTEGER NOT NULL,
    shape INTEGER NOT NULL,
    known INTEGER NOT NULL,
    PRIMARY KEY (lane, shape)
) WITHOUT ROWID;

-- Counters by name. kind: 'outcome', 'rejected', 'note' or 'waiting': queued, delayed and cancelled tasks by kind, without http.
CREATE TABLE counter (
    crawl INTEGER NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (crawl, kind, name)
) WITHOUT ROWID;

-- A few rejected or merged URLs per reason.
CREATE TABLE sample (
    crawl INTEGER NOT NULL,
    reason TEXT NOT NULL,
    position INTEGER NOT NULL,
    url TEXT NOT NULL,
    PRIMARY KEY (crawl, reason, position)
) WITHOUT ROWID;

CREATE TABLE worker (
    name TEXT PRIMARY KEY,
    crawl TEXT NOT NULL,
    seen REAL NOT NULL,
    beat BLOB NOT NULL
) WITHOUT ROWID;

-- The history of a crawl. step: seconds per point; slot: number of the step since 1970.
CREATE TABLE point (
    crawl INTEGER NOT NULL,
    step INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    at REAL NOT NULL,
    point BLOB NOT NULL,
    PRIMARY KEY (crawl, step, slot)
) WITHOUT ROWID;

-- Duties, each held by one process at a time. The notes outlive their holder. term: counts the holders; a write of an earlier holder
-- is refused.
CREATE TABLE duty (
    name TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    since REAL NOT NULL,
    until REAL NOT NULL,
    notes BLOB NOT NULL,
    term INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
