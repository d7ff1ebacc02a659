-- Tasks have a kind.
ALTER TABLE crawl ADD COLUMN kinds TEXT NOT NULL DEFAULT '';
ALTER TABLE task ADD COLUMN kind INTEGER NOT NULL DEFAULT 0;
DROP INDEX task_queued;
CREATE INDEX task_queued ON task (lane, kind, ord) WHERE state = 0;
CREATE TABLE lane_kind (
    lane INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    crawl INTEGER NOT NULL,
    waiting INTEGER NOT NULL,
    due REAL,
    PRIMARY KEY (lane, kind)
) WITHOUT ROWID;
CREATE INDEX lane_kind_ready ON lane_kind (crawl, kind, due, lane) WHERE waiting > 0 AND due IS NOT NULL;
