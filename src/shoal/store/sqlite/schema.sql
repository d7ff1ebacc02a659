-- The tables of SqliteStore, one part of shoal.db. `views.sql` and `from_2.sql` follow.
-- Guarantee: one row per item and per task of the fetch log, however often it is written; newer tokens win.

CREATE TABLE item (
    id         INTEGER PRIMARY KEY, -- order of first arrival; an upsert keeps it, so readers go by it
    spider     TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    crawl      TEXT    NOT NULL,    -- the crawl that wrote the row last
    url        TEXT    NOT NULL,
    data       TEXT    NOT NULL,    -- JSON
    token      INTEGER NOT NULL,
    first_seen REAL    NOT NULL,
    last_seen  REAL    NOT NULL,
    changed_at REAL,                -- NULL: not changed since the file got this column
    version    INTEGER NOT NULL DEFAULT 1,
    content    INTEGER,             -- fingerprint of the decoded data; NULL: the text itself is compared
    UNIQUE (spider, key)
);

-- Every index ends in the id: the items of a crawl come in order without a sort.
CREATE INDEX item_by_crawl ON item (crawl);

-- Not WITHOUT ROWID: keys are hashes, and only the small index should be written at random.
CREATE TABLE fetch (
    crawl        TEXT    NOT NULL,
    key          INTEGER NOT NULL,
    url          TEXT    NOT NULL,
    outcome      TEXT    NOT NULL,
    token        INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    at           REAL    NOT NULL,
    status       INTEGER NOT NULL,
    final_url    TEXT    NOT NULL,
    worker       TEXT    NOT NULL,
    exit         TEXT    NOT NULL,
    size         INTEGER NOT NULL,
    elapsed      REAL    NOT NULL,
    error        TEXT    NOT NULL,
    parent       INTEGER,
    content_hash TEXT    NOT NULL DEFAULT '',
    archived     TEXT    NOT NULL DEFAULT '',
    UNIQUE (crawl, key)
);
