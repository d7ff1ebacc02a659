-- What one fleet with many crawls needs.
ALTER TABLE crawl ADD COLUMN keys INTEGER NOT NULL DEFAULT 0;
