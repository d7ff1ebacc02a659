-- Version 2 to 3: a lane's exits are kept in its own row, by their index in the pool's list.
-- Pools, parked exits, sessions and the crawl's cost stay. What a lane knew of single exits, quarantines and counts, starts anew.

-- The lease of an exit cannot end: its lane knows nothing of it any more. The task waits again, its attempt given back.
UPDATE lane SET opener = 0, exits_next = 0 WHERE instr(name, ' via ') > 0;
UPDATE lane
SET waiting = lane.waiting + held.queued, in_flight = in_flight - held.tasks
FROM (
    SELECT task.lane, count(*) AS tasks, count(*) FILTER (WHERE crawl.state <> 'cancelled') AS queued
    FROM task JOIN crawl ON crawl.id = task.crawl
    WHERE task.state = 2 AND task.exit <> 'direct'
    GROUP BY task.lane) AS held
WHERE held.lane = lane.id;
UPDATE crawl
SET queued = queued + iif(state = 'cancelled', 0, held.tasks),
    cancelled = cancelled + iif(state = 'cancelled', held.tasks, 0),
    leased = leased - held.tasks
FROM (SELECT crawl, count(*) AS tasks FROM task WHERE state = 2 AND exit <> 'direct' GROUP BY crawl) AS held
WHERE held.crawl = crawl.id;
UPDATE task
SET state = (SELECT iif(crawl.state = 'cancelled', 4, 0) FROM crawl WHERE crawl.id = task.crawl),
    at = 0, attempts = attempts - 1, worker = ''
WHERE state = 2 AND exit <> 'direct';
UPDATE exit SET holder = 0, trial = 0;

ALTER TABLE crawl_about ADD COLUMN rolls BLOB NOT NULL DEFAULT X'7B7D';
UPDATE crawl_about
SET rolls = (
    SELECT CAST(json_group_object(json_extract(value, '$.name'), json(json_extract(value, '$.exits'))) AS BLOB)
    FROM json_each(CAST(pools AS TEXT)));
ALTER TABLE lane ADD COLUMN exits BLOB NOT NULL DEFAULT X'';

DROP TABLE IF EXISTS lane_pool;
DROP TABLE IF EXISTS lane_exit;
CREATE TABLE lane_rest (
    lane INTEGER NOT NULL,
    place INTEGER NOT NULL,
    due REAL NOT NULL,
    PRIMARY KEY (lane, place)
) WITHOUT ROWID;
CREATE INDEX lane_rest_due ON lane_rest (lane, due, place);
CREATE TABLE lane_exit (
    lane INTEGER NOT NULL,
    place INTEGER NOT NULL,
    requests INTEGER NOT NULL,
    ok INTEGER NOT NULL,
    blocked INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    size INTEGER NOT NULL,
    elapsed REAL NOT NULL,
    cost REAL NOT NULL,
    streak INTEGER NOT NULL DEFAULT 0,
    rests_until REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (lane, place)
) WITHOUT ROWID;
