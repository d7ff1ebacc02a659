-- Version 2 to 3: what a request was, beside its URL. A new file runs this as well, after `schema.sql` and `views.sql`.
-- A worker of the former version that still runs can go on writing: the new column has a default.

ALTER TABLE fetch ADD COLUMN request TEXT NOT NULL DEFAULT '';

DROP VIEW fetches;

-- The host ends at the first slash: URLs in the log are canonical.
CREATE VIEW fetches AS
SELECT crawl, key, url,
       substr(url, instr(url, '//') + 2, instr(substr(url, instr(url, '//') + 2) || '/', '/') - 1) AS host,
       final_url, status, outcome, attempt, worker, exit, size, content_hash, elapsed, at, error, parent, archived, request
FROM fetch;
