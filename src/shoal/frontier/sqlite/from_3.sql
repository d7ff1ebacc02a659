-- Crawls know why they were paused or cancelled.
ALTER TABLE crawl_about ADD COLUMN reason TEXT NOT NULL DEFAULT '';
