-- Step 3: the items of a page by name. A worker of the former version that still runs can go on writing.

ALTER TABLE fetches ADD COLUMN item_keys text COLLATE "C" NOT NULL DEFAULT '';

CREATE OR REPLACE VIEW fetches_latest AS
SELECT DISTINCT ON (crawl, key) * FROM fetches ORDER BY crawl, key, token DESC, at DESC;
