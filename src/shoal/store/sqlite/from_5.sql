-- Version 5 to 6: items that are gone, and the validators of answers. A new file runs this as well, last.
-- A worker of the former version that still runs can go on writing: every new column has a default. Items that it sees
-- again stay gone until a worker of this version sees them.

ALTER TABLE item ADD COLUMN written_at REAL;    -- when it was written last, if it was only seen since; NULL: last_seen
ALTER TABLE item ADD COLUMN missing_since REAL; -- since when its page is known not to have it; NULL: it may have it
ALTER TABLE item ADD COLUMN gone_at REAL;       -- since when it counts as gone; then it is missing as well
ALTER TABLE item ADD COLUMN moves INTEGER NOT NULL DEFAULT 0; -- how often it went or came back: with `version`, the
                                                              -- number of a change for the outbox
ALTER TABLE item ADD COLUMN left_at REAL;       -- when it went, and came back, the last time that it did both
ALTER TABLE item ADD COLUMN back_at REAL;

-- Only items that may become gone next: nearly all rows cost this index nothing.
CREATE INDEX item_missing ON item (missing_since) WHERE missing_since IS NOT NULL AND gone_at IS NULL;

ALTER TABLE fetch ADD COLUMN etag TEXT NOT NULL DEFAULT '';
ALTER TABLE fetch ADD COLUMN last_modified TEXT NOT NULL DEFAULT '';
ALTER TABLE earlier_fetch ADD COLUMN etag TEXT NOT NULL DEFAULT '';
ALTER TABLE earlier_fetch ADD COLUMN last_modified TEXT NOT NULL DEFAULT '';

DROP TRIGGER keep_earlier_fetch;

-- The newest 19 stay (ATTEMPTS_KEPT less the latest): a site that fails for ever does not fill the disk.
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

-- The sinks of a spider in any order: to sort them, a sorter would be set up for every item, also where there is no sink.
DROP TRIGGER item_is_new;

CREATE TRIGGER item_is_new AFTER INSERT ON item
BEGIN
    INSERT INTO outbox (sink, key, version, change, at, url, crawl, data, queued)
    SELECT id, NEW.key, NEW.version, 'new', coalesce(NEW.changed_at, NEW.first_seen), NEW.url, NEW.crawl, NEW.data,
           strftime('%s', 'now')
    FROM sink WHERE spider = NEW.spider;
END;

-- A change of an item that stays gone is no news: it is sent whole when it comes back.
DROP TRIGGER item_has_changed;

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

DROP VIEW items_changed;
DROP VIEW items;

CREATE VIEW items AS
SELECT spider, key, crawl, url, data, first_seen, last_seen, coalesce(changed_at, first_seen) AS changed_at, version,
       gone_at
FROM item;

CREATE VIEW items_changed AS SELECT * FROM items WHERE version > 1;

DROP VIEW fetches;
DROP VIEW earlier_fetches;

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
