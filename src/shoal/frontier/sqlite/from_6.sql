-- Crawls have a history, the frontier has duties, lanes have reasons.
CREATE TABLE point (
    crawl INTEGER NOT NULL,
    step INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    at REAL NOT NULL,
    point BLOB NOT NULL,
    PRIMARY KEY (crawl, step, slot)
) WITHOUT ROWID;
CREATE TABLE duty (
    name TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    since REAL NOT NULL,
    until REAL NOT NULL,
    notes BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE lane_why (
    lane INTEGER NOT NULL,
    kind TEXT NOT NULL,
    why TEXT NOT NULL,
    PRIMARY KEY (lane, kind)
) WITHOUT ROWID;
