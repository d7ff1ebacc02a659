-- What one fleet with many crawls needs.
ALTER TABLE crawl ADD COLUMN ran REAL NOT NULL DEFAULT 0;
ALTER TABLE crawl ADD COLUMN limits TEXT NOT NULL DEFAULT '';
