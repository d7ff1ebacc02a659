BEGIN TRANSACTION;
CREATE TABLE earlier_fetch (
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
    content_hash TEXT    NOT NULL,
    archived     TEXT    NOT NULL, -- also what an attempt before this one archived, if this one archived nothing
    request      TEXT    NOT NULL,
    item_keys    TEXT    NOT NULL
, etag TEXT NOT NULL DEFAULT '', last_modified TEXT NOT NULL DEFAULT '');
INSERT INTO "earlier_fetch" VALUES('books-1',1,'https://a.test/1','http_500',1,1,1001.0,0,'','','',0,0.0,'',NULL,'','','','["k1"]','','');
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
    archived     TEXT    NOT NULL DEFAULT '', request TEXT NOT NULL DEFAULT '', item_keys TEXT NOT NULL DEFAULT '', etag TEXT NOT NULL DEFAULT '', last_modified TEXT NOT NULL DEFAULT '',
    UNIQUE (crawl, key)
);
INSERT INTO "fetch" VALUES('books-1',1,'https://a.test/1','ok',2,2,1002.0,0,'','','',0,0.0,'',NULL,'','','','["k1"]','','');
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
    content    INTEGER, written_at REAL, missing_since REAL, gone_at REAL, moves INTEGER NOT NULL DEFAULT 0, left_at REAL, back_at REAL,             -- fingerprint of the decoded data; NULL: the text itself is compared
    UNIQUE (spider, key)
);
INSERT INTO "item" VALUES(1,'books','k1','books-1','https://a.test/k1','{"n":2}',2,1000.0,1001.0,1001.0,2,-5294149779089175589,NULL,NULL,NULL,0,NULL,NULL);
CREATE TABLE item_version (
    id         INTEGER PRIMARY KEY, -- the versions of an item arrive oldest first, so readers go by it
    spider     TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    crawl      TEXT    NOT NULL,
    url        TEXT    NOT NULL,
    data       TEXT    NOT NULL,
    changed_at REAL    NOT NULL,
    UNIQUE (spider, key, version)
);
INSERT INTO "item_version" VALUES(1,'books','k1',1,'books-1','https://a.test/k1','{"n":1}',1000.0);
INSERT INTO "item_version" VALUES(2,'books','k1',2,'books-1','https://a.test/k1','{"n":2}',1001.0);
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
INSERT INTO "outbox" VALUES(1,1,'k1',1,'new',1000.0,'https://a.test/k1','books-1','{"n":1}',1795000626);
INSERT INTO "outbox" VALUES(2,1,'k1',2,'changed',1001.0,'https://a.test/k1','books-1','{"n":2}',1795000626);
CREATE TABLE shoal_schema (part TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "shoal_schema" VALUES('store',6);
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
INSERT INTO "sink" VALUES(1,'books','-','',0,1000.0,0,0.0,'',0.0,'',0.0);
CREATE INDEX item_by_crawl ON item (crawl);
CREATE VIEW item_versions AS SELECT spider, key, version, crawl, url, data, changed_at FROM item_version;
CREATE INDEX earlier_fetch_of_task ON earlier_fetch (crawl, key, token);
CREATE INDEX outbox_of_sink ON outbox (sink);
CREATE INDEX item_missing ON item (missing_since) WHERE missing_since IS NOT NULL AND gone_at IS NULL;
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
CREATE TRIGGER item_is_new AFTER INSERT ON item
BEGIN
    INSERT INTO outbox (sink, key, version, change, at, url, crawl, data, queued)
    SELECT id, NEW.key, NEW.version, 'new', coalesce(NEW.changed_at, NEW.first_seen), NEW.url, NEW.crawl, NEW.data,
           strftime('%s', 'now')
    FROM sink WHERE spider = NEW.spider;
END;
CREATE TRIGGER item_has_changed AFTER UPDATE OF version ON item
WHEN NEW.version > OLD.version AND OLD.gone_at IS NULL AND NEW.gone_at IS NULL
BEGIN
    INSERT INTO outbox (sink, key, version, change, at, url, crawl, data, queued)
    SELECT id, NEW.key, NEW.version + NEW.moves, 'changed', coalesce(NEW.changed_at, NEW.last_seen), NEW.url, NEW.crawl,
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
CREATE VIEW items AS
SELECT spider, key, crawl, url, data, first_seen, last_seen, coalesce(changed_at, first_seen) AS changed_at, version,
       gone_at
FROM item;
CREATE VIEW items_changed AS SELECT * FROM items WHERE version > 1;
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
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('sink',1);
INSERT INTO "sqlite_sequence" VALUES('outbox',2);
COMMIT;
