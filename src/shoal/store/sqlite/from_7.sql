-- Version 7 to 8: the parts of the log that were moved into an archive. A new file runs this as well, last.

CREATE TABLE log_part (
    name     TEXT PRIMARY KEY, -- of the file
    week     TEXT    NOT NULL, -- its Monday
    archive  TEXT    NOT NULL,
    lines    INTEGER NOT NULL DEFAULT 0,
    moved_at REAL              -- NULL: it was begun; the file may be there, and its lines are still in the log
) WITHOUT ROWID;

CREATE VIEW log_weeks AS
SELECT week, archive, sum(lines) AS lines, count(*) AS files, max(moved_at) AS moved_at
FROM log_part WHERE moved_at IS NOT NULL AND lines > 0 GROUP BY week, archive;
