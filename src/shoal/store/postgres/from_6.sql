-- Step 7: the parts of the log that were moved into an archive.

CREATE TABLE log_parts (
    name     text        COLLATE "C" PRIMARY KEY, -- of the file
    week     date        NOT NULL,                -- its Monday
    archive  text        NOT NULL,
    lines    bigint      NOT NULL DEFAULT 0,
    moved_at timestamptz                          -- NULL: it was begun; the file may be there, and its lines are still in the log
);

CREATE VIEW log_weeks AS
SELECT week, archive, sum(lines)::bigint AS lines, count(*) AS files, max(moved_at) AS moved_at
FROM log_parts WHERE moved_at IS NOT NULL AND lines > 0 GROUP BY week, archive;
