-- Tasks count the leases that were lost with their workers, crawls know their feeders and the steps of their clock.
ALTER TABLE task ADD COLUMN losses INTEGER NOT NULL DEFAULT 0;
ALTER TABLE crawl ADD COLUMN clock_last REAL NOT NULL DEFAULT 0;
ALTER TABLE crawl ADD COLUMN clock_shift REAL NOT NULL DEFAULT 0;
CREATE TABLE feeder (
    crawl INTEGER NOT NULL,
    name TEXT NOT NULL,
    until REAL NOT NULL,
    PRIMARY KEY (crawl, name)
) WITHOUT ROWID;
