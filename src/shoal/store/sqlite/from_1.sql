-- Version 1 to 2: columns only, so that a large file is ready at once. `views.sql` follows.
-- A worker of the former version that still runs can go on writing: every new column has a default.

ALTER TABLE item ADD COLUMN changed_at REAL;
ALTER TABLE item ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
ALTER TABLE item ADD COLUMN content INTEGER;
ALTER TABLE fetch ADD COLUMN content_hash TEXT NOT NULL DEFAULT '';
ALTER TABLE fetch ADD COLUMN archived TEXT NOT NULL DEFAULT '';
