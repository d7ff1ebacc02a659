-- Version 2 to 3, of a file whose version 2 has no exits yet. `from_2_exits.sql` follows.
-- Default 'direct': leases that are out when this runs went out directly.

ALTER TABLE crawl ADD COLUMN max_cost REAL NOT NULL DEFAULT 0;
ALTER TABLE crawl ADD COLUMN cost REAL NOT NULL DEFAULT 0;
ALTER TABLE crawl_about ADD COLUMN pools BLOB NOT NULL DEFAULT X'5B5D';
ALTER TABLE task ADD COLUMN exit TEXT NOT NULL DEFAULT 'direct';
ALTER TABLE lane ADD COLUMN exits_next REAL NOT NULL DEFAULT 0;

DROP INDEX lane_ready;
CREATE INDEX lane_ready ON lane (crawl, max(next_start, exits_next))
    WHERE waiting > 0 AND in_flight < cap AND opener = 0;

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

CREATE TABLE pool_turn (
    crawl INTEGER NOT NULL,
    pool TEXT NOT NULL,
    begun INTEGER NOT NULL,
    PRIMARY KEY (crawl, pool)
) WITHOUT ROWID;
