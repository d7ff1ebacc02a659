-- Known keys no longer name their tasks: leased tasks, the only ones that settling asks for, have an index by key.
CREATE TABLE seen_keys (
    crawl INTEGER NOT NULL,
    key INTEGER NOT NULL,
    PRIMARY KEY (crawl, key)
) WITHOUT ROWID;
INSERT INTO seen_keys (crawl, key) SELECT crawl, key FROM seen ORDER BY crawl, key;
DROP TABLE seen;
ALTER TABLE seen_keys RENAME TO seen;
CREATE INDEX task_held ON task (crawl, key) WHERE state = 2;
