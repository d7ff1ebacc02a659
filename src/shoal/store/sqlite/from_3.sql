-- Version 3 to 4: earlier attempts at a task, and the items of a page by name. A new file runs this as well, last.
-- A worker of the former version that still runs can go on writing: the new column has a default.

ALTER TABLE fetch ADD COLUMN item_keys TEXT NOT NULL DEFAULT '';

-- The attempts before the latest one, which is in `fetch`: most tasks have none, and cost nothing here.
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
);

CREATE INDEX earlier_fetch_of_task ON earlier_fetch (crawl, key, token);

-- The newest 19 stay (ATTEMPTS_KEPT less the latest): a site that fails for ever does not fill the disk.
CREATE TRIGGER keep_earlier_fetch AFTER UPDATE OF token ON fetch WHEN NEW.token > OLD.token
BEGIN
    INSERT INTO earlier_fetch (
        crawl, key, url, outcome, token, attempt, at, status, final_url, worker, exit, size, elapsed, error, parent,
        content_hash, archived, request, item_keys
    ) VALUES (
        OLD.crawl, OLD.key, OLD.url, OLD.outcome, OLD.token, OLD.attempt, OLD.at, OLD.status, OLD.final_url, OLD.worker,
        OLD.exit, OLD.size, OLD.elapsed, OLD.error, OLD.parent, OLD.content_hash, OLD.archived, OLD.request, OLD.item_keys
    );
    DELETE FROM earlier_fetch WHERE crawl = OLD.crawl AND key = OLD.key AND token < (
        SELECT token FROM earlier_fetch WHERE crawl = OLD.crawl AND key = OLD.key ORDER BY token DESC LIMIT 1 OFFSET 18
    );
END;

DROP VIEW fetches;

-- The host ends at the first slash: URLs in the log are canonical.
CREATE VIEW fetches AS
SELECT crawl, key, url,
       substr(url, instr(url, '//') + 2, instr(substr(url, instr(url, '//') + 2) || '/', '/') - 1) AS host,
       final_url, status, outcome, attempt, worker, exit, size, content_hash, elapsed, at, error, parent, archived, request,
       item_keys
FROM fetch;

CREATE VIEW earlier_fetches AS
SELECT crawl, key, url,
       substr(url, instr(url, '//') + 2, instr(substr(url, instr(url, '//') + 2) || '/', '/') - 1) AS host,
       final_url, status, outcome, attempt, worker, exit, size, content_hash, elapsed, at, error, parent, archived, request,
       item_keys
FROM earlier_fetch;
