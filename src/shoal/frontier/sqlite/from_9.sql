-- What one fleet with many crawls needs.
ALTER TABLE crawl_about ADD COLUMN offers BLOB NOT NULL DEFAULT x'';
