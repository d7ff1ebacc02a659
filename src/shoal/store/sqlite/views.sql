-- New in version 2: versions of items, and the views that users query.

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

CREATE VIEW items AS
SELECT spider, key, crawl, url, data, first_seen, last_seen, coalesce(changed_at, first_seen) AS changed_at, version
FROM item;

CREATE VIEW items_changed AS SELECT * FROM items WHERE version > 1;

CREATE VIEW item_versions AS SELECT spider, key, version, crawl, url, data, changed_at FROM item_version;

-- The host ends at the first slash: URLs in the log are canonical.
CREATE VIEW fetches AS
SELECT crawl, key, url,
       substr(url, instr(url, '//') + 2, instr(substr(url, instr(url, '//') + 2) || '/', '/') - 1) AS host,
       final_url, status, outcome, attempt, worker, exit, size, content_hash, elapsed, at, error, parent, archived
FROM fetch;
