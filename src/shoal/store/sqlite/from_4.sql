-- Version 4 to 5: the outbox. A new file runs this as well, last.
-- Triggers, so that a change is kept in the same transaction whatever statement makes it; also that of a worker of the
-- former version that still runs. A spider without a sink costs one look into an empty index.

CREATE TABLE sink (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    spider        TEXT    NOT NULL,
    url           TEXT    NOT NULL,           -- without secrets
    host          TEXT    NOT NULL,           -- the machine of a file or a loopback address; else empty
    has_secret    INTEGER NOT NULL,
    added         REAL    NOT NULL,
    sent          INTEGER NOT NULL DEFAULT 0,
    sent_at       REAL    NOT NULL DEFAULT 0,
    trouble       TEXT    NOT NULL DEFAULT '',
    trouble_since REAL    NOT NULL DEFAULT 0,
    holder        TEXT    NOT NULL DEFAULT '', -- who has the duty to send
    held_until    REAL    NOT NULL DEFAULT 0,
    UNIQUE (spider, url, host)
);

-- A row per sink: it is deleted when that sink has it. AUTOINCREMENT: a position is never used twice, so that a
-- process that was slow to say what it has sent cannot delete what came since.
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

CREATE TRIGGER item_is_new AFTER INSERT ON item
BEGIN
    INSERT INTO outbox (sink, key, version, change, at, url, crawl, data, queued)
    SELECT id, NEW.key, NEW.version, 'new', coalesce(NEW.changed_at, NEW.first_seen), NEW.url, NEW.crawl, NEW.data,
           strftime('%s', 'now')
    FROM sink WHERE spider = NEW.spider ORDER BY id;
END;

CREATE TRIGGER item_has_changed AFTER UPDATE OF version ON item WHEN NEW.version > OLD.version
BEGIN
    INSERT INTO outbox (sink, key, version, change, at, url, crawl, data, queued)
    SELECT id, NEW.key, NEW.version, 'changed', coalesce(NEW.changed_at, NEW.last_seen), NEW.url, NEW.crawl, NEW.data,
           strftime('%s', 'now')
    FROM sink WHERE spider = NEW.spider ORDER BY id;
END;
