-- The tables of SqliteStore, one part of shoal.db, and views for users. Guarantee: one row per item and per task of the
-- fetch log, however often it is written; newer tokens win.

CREATE TABLE item (
    id         INTEGER PRIMARY KEY, -- order of first arrival; an upsert keeps it, so readers page by it
    spider     TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    crawl      TEXT    NOT NULL,    -- the crawl that wrote the row last
    url        TEXT    NOT NULL,
    data       TEXT    NOT NULL,    -- JSON
    token      INTEGER NOT NULL,
    first_seen REAL    NOT NULL,
    last_seen  REAL    NOT NULL,
    changed_at REAL    NOT NULL,    -- when the present content came
    version    INTEGER NOT NULL DEFAULT 1, -- counts the contents so far
    content    INTEGER NOT NULL,    -- fingerprint of the data
    written_at REAL,                -- time of the last write, if the item was only seen since; NULL: last_seen
    missing_since REAL,             -- since when its page lacks it; NULL: not known to be missing
    gone_at    REAL,                -- since when it is gone; a gone item is also missing
    moves      INTEGER NOT NULL DEFAULT 0, -- how often it left or came back: `version` + `moves` numbers the
                                           -- changes in the outbox
    left_at    REAL,                -- the last time that it was gone and came back
    back_at    REAL,
    UNIQUE (spider, key)
);

-- Every index ends in the id: the items of a crawl are in order without a sort.
CREATE INDEX item_by_crawl ON item (crawl);

-- Only items that may be marked gone next: nearly all rows are not in this index.
CREATE INDEX item_missing ON item (missing_since) WHERE missing_since IS NOT NULL AND gone_at IS NULL;

CREATE TABLE item_version (
    id         INTEGER PRIMARY KEY, -- versions arrive oldest first, so readers page by it
    spider     TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    crawl      TEXT    NOT NULL,
    url        TEXT    NOT NULL,
    data       TEXT    NOT NULL,
    changed_at REAL    NOT NULL,
    UNIQUE (spider, key, version)
);

-- Not WITHOUT ROWID: keys are hashes, so only the small index should be written at random places.
CREATE TABLE fetch (
    crawl         TEXT    NOT NULL,
    key           INTEGER NOT NULL,
    url           TEXT    NOT NULL,
    outcome       TEXT    NOT NULL,
    token         INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    at            REAL    NOT NULL,
    status        INTEGER NOT NULL,
    final_url     TEXT    NOT NULL,
    worker        TEXT    NOT NULL,
    exit          TEXT    NOT NULL,
    size          INTEGER NOT NULL,
    elapsed       REAL    NOT NULL,
    error         TEXT    NOT NULL,
    parent        INTEGER,
    content_hash  TEXT    NOT NULL DEFAULT '',
    archived      TEXT    NOT NULL DEFAULT '',
    request       TEXT    NOT NULL DEFAULT '', -- method, and size and hash of the body; empty: a plain GET
    item_keys     TEXT    NOT NULL DEFAULT '',
    etag          TEXT    NOT NULL DEFAULT '',
    last_modified TEXT    NOT NULL DEFAULT '',
    UNIQUE (crawl, key)
);

-- The attempts before the latest one, which is in `fetch`. Most tasks have none.
CREATE TABLE earlier_fetch (
    crawl         TEXT    NOT NULL,
    key           INTEGER NOT NULL,
    url           TEXT    NOT NULL,
    outcome       TEXT    NOT NULL,
    token         INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    at            REAL    NOT NULL,
    status        INTEGER NOT NULL,
    final_url     TEXT    NOT NULL,
    worker        TEXT    NOT NULL,
    exit          TEXT    NOT NULL,
    size          INTEGER NOT NULL,
    elapsed       REAL    NOT NULL,
    error         TEXT    NOT NULL,
    parent        INTEGER,
    content_hash  TEXT    NOT NULL,
    archived      TEXT    NOT NULL, -- if this attempt archived nothing, the capture of an earlier one
    request       TEXT    NOT NULL,
    item_keys     TEXT    NOT NULL,
    etag          TEXT    NOT NULL DEFAULT '',
    last_modified TEXT    NOT NULL DEFAULT ''
);

CREATE INDEX earlier_fetch_of_task ON earlier_fetch (crawl, key, token);

-- The newest 19 stay (ATTEMPTS_KEPT without the latest): a site that fails for ever must not fill the disk.
CREATE TRIGGER keep_earlier_fetch AFTER UPDATE OF token ON fetch WHEN NEW.token > OLD.token
BEGIN
    INSERT INTO earlier_fetch (
        crawl, key, url, outcome, token, attempt, at, status, final_url, worker, exit, size, elapsed, error, parent,
        content_hash, archived, request, item_keys, etag, last_modified
    ) VALUES (
        OLD.crawl, OLD.key, OLD.url, OLD.outcome, OLD.token, OLD.attempt, OLD.at, OLD.status, OLD.final_url, OLD.worker,
        OLD.exit, OLD.size, OLD.elapsed, OLD.error, OLD.parent, OLD.content_hash, OLD.archived, OLD.request,
        OLD.item_keys, OLD.etag, OLD.last_modified
    );
    DELETE FROM earlier_fetch WHERE crawl = OLD.crawl AND key = OLD.key AND token < (
        SELECT token FROM earlier_fetch WHERE crawl = OLD.crawl AND key = OLD.key ORDER BY token DESC LIMIT 1 OFFSET 18
    );
END;

CREATE TABLE sink (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    spider        TEXT    NOT NULL,
    url           TEXT    NOT NULL,           -- without secrets
    host          TEXT    NOT NULL,           -- the machine, for a file or loopback address; else empty
    has_secret    INTEGER NOT NULL,
    added         REAL    NOT NULL,
    sent          INTEGER NOT NULL DEFAULT 0,
    sent_at       REAL    NOT NULL DEFAULT 0,
    trouble       TEXT    NOT NULL DEFAULT '',
    trouble_since REAL    NOT NULL DEFAULT 0,
    holder        TEXT    NOT NULL DEFAULT '', -- the last process that locked the sink
    held_until    REAL    NOT NULL DEFAULT 0,
    UNIQUE (spider, url, host)
);

-- A row per sink, deleted when that sink has the change. AUTOINCREMENT: a position is never used twice, so that a slow
-- process cannot delete newer changes.
CREATE TABLE outbox (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    sink     INTEGER NOT NULL,
    key      TEXT    NOT NULL,
    version  INTEGER NOT NULL,
    change   TEXT    NOT NULL,
    at       REAL    NOT NULL,
    url      TEXT    NOT NULL,
    crawl    TEXT    NOT NULL,
    data     TEXT    NOT NULL,
    queued   INTEGER NOT NULL   -- seconds
);

CREATE INDEX outbox_of_sink ON outbox (sink);

-- Triggers: a change is stored in the transaction that makes it, whatever the statement. A spider without a sink costs
-- one search in an empty index. Not sorted by sink: SQLite would set up a sorter for every item, even without a sink.
CREATE TRIGGER item_is_new AFTER INSERT ON item
BEGIN
    INSERT INTO outbox (sink, key, version, change, at, url, crawl, data, queued)
    SELECT id, NEW.key, NEW.version, 'new', NEW.changed_at, NEW.url, NEW.crawl, NEW.data,
           strftime('%s', 'now')
    FROM sink WHERE spider = NEW.spider;
END;

-- A change of an item that stays gone is not sent: the item is sent whole when it comes back.
CREATE TRIGGER item_has_changed AFTER UPDATE OF version ON item
WHEN NEW.version > OLD.version AND OLD.gone_at IS NULL AND NEW.gone_at IS NULL
BEGIN
    INSERT INTO outbox (sink, key, version, change, at, url, crawl, data, queued)
    SELECT id, NEW.key, NEW.version + NEW.moves, 'changed', NEW.changed_at, NEW.url, NEW.crawl,
           NEW.data, strftime('%s', 'now')
    FROM sink WHERE spider = NEW.spider;
END;

CREATE TRIGGER item_has_moved AFTER UPDATE OF gone_at ON item WHEN (NEW.gone_at IS NULL) <> (OLD.gone_at IS NULL)
BEGIN
    INSERT INTO outbox (sink, key, version, change, at, url, crawl, data, queued)
    SELECT id, NEW.key, NEW.version + NEW.moves, iif(NEW.gone_at IS NULL, 'new', 'gone'),
           coalesce(NEW.gone_at, NEW.last_seen), NEW.url, NEW.crawl, NEW.data, strftime('%s', 'now')
    FROM sink WHERE spider = NEW.spider;
    UPDATE item SET left_at = OLD.gone_at, back_at = NEW.last_seen WHERE id = NEW.id AND NEW.gone_at IS NULL;
END;

-- Item views and tables, see store/item_views.py.
CREATE TABLE item_view (
    name     TEXT PRIMARY KEY COLLATE NOCASE, -- of the view or table, in this database
    spider   TEXT    NOT NULL,
    is_table INTEGER NOT NULL,
    origin   TEXT    NOT NULL, -- where its columns were taken from, for people
    columns  TEXT    NOT NULL, -- JSON
    position INTEGER           -- the last id of `item` that `fill` copied; NULL: filled
) WITHOUT ROWID;

-- The parts of the log that were moved into an archive.
CREATE TABLE log_part (
    name     TEXT PRIMARY KEY, -- of the file
    week     TEXT    NOT NULL, -- its Monday
    archive  TEXT    NOT NULL,
    lines    INTEGER NOT NULL DEFAULT 0,
    moved_at REAL              -- NULL: begun; the file may exist, its lines are still in the log
) WITHOUT ROWID;

CREATE VIEW items AS
SELECT spider, key, crawl, url, data, first_seen, last_seen, changed_at, version,
       gone_at
FROM item;

CREATE VIEW items_changed AS SELECT * FROM items WHERE version > 1;

CREATE VIEW item_versions AS SELECT spider, key, version, crawl, url, data, changed_at FROM item_version;

-- The host ends at the first slash: URLs in the log are canonical.
CREATE VIEW fetches AS
SELECT crawl, key, url,
       substr(url, instr(url, '//') + 2, instr(substr(url, instr(url, '//') + 2) || '/', '/') - 1) AS host,
       final_url, status, outcome, attempt, worker, exit, size, content_hash, elapsed, at, error, parent, archived, request,
       item_keys, etag, last_modified
FROM fetch;

CREATE VIEW earlier_fetches AS
SELECT crawl, key, url,
       substr(url, instr(url, '//') + 2, instr(substr(url, instr(url, '//') + 2) || '/', '/') - 1) AS host,
       final_url, status, outcome, attempt, worker, exit, size, content_hash, elapsed, at, error, parent, archived, request,
       item_keys, etag, last_modified
FROM earlier_fetch;

CREATE VIEW log_weeks AS
SELECT week, archive, sum(lines) AS lines, count(*) AS files, max(moved_at) AS moved_at
FROM log_part WHERE moved_at IS NOT NULL AND lines > 0 GROUP BY week, archive;
