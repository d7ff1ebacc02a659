-- Version 1 to 2: keys may expire. The crawls that are there keep theirs for ever.

ALTER TABLE crawl ADD COLUMN dedup_ttl REAL NOT NULL DEFAULT 0;
ALTER TABLE crawl ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;
ALTER TABLE crawl ADD COLUMN turned REAL NOT NULL DEFAULT 0;

CREATE TABLE past (
    crawl INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    key INTEGER NOT NULL,
    PRIMARY KEY (crawl, generation, key)
) WITHOUT ROWID;
