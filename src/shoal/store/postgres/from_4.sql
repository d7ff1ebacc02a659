-- Step 5: items that are gone, and the validators of answers. A worker of the former version that still runs can go on
-- writing: every new column has a default. Items that it sees again stay gone until a worker of this version sees them.

ALTER TABLE items ADD COLUMN gone_at       timestamptz; -- since when it counts as gone; then it is missing as well
ALTER TABLE items ADD COLUMN missing_since timestamptz; -- since when its page is known not to have it
ALTER TABLE items ADD COLUMN written_at    timestamptz; -- when it was written last, if it was only seen since
ALTER TABLE items ADD COLUMN moves integer NOT NULL DEFAULT 0; -- how often it went or came back: with `version`, the
                                                               -- number of a change for the outbox
ALTER TABLE items ADD COLUMN left_at       timestamptz; -- when it went, and came back, the last time that it did both
ALTER TABLE items ADD COLUMN back_at       timestamptz;

-- Only items that may become gone next: nearly all rows are not in it.
CREATE INDEX items_missing ON items (missing_since) WHERE missing_since IS NOT NULL AND gone_at IS NULL;

CREATE OR REPLACE VIEW items_changed AS SELECT * FROM items WHERE version > 1;

ALTER TABLE fetches ADD COLUMN etag          text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE fetches ADD COLUMN last_modified text COLLATE "C" NOT NULL DEFAULT '';

CREATE OR REPLACE VIEW fetches_latest AS
SELECT DISTINCT ON (crawl, key) * FROM fetches ORDER BY crawl, key, token DESC, at DESC;

-- Runs while the item's row is locked: see step 4. A change of an item that stays gone is no news: it is sent whole when
-- it comes back.
CREATE OR REPLACE FUNCTION note_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    was_gone boolean := false;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        was_gone := OLD.gone_at IS NOT NULL;
        IF was_gone AND NEW.gone_at IS NOT NULL THEN
            RETURN NULL;
        END IF;
    END IF;
    INSERT INTO outbox (sink, key, version, change, at, url, crawl, data)
    SELECT sinks.id, NEW.key, NEW.version + NEW.moves,
           CASE WHEN NEW.gone_at IS NOT NULL THEN 'gone' WHEN TG_OP = 'INSERT' OR was_gone THEN 'new' ELSE 'changed' END,
           CASE WHEN NEW.gone_at IS NOT NULL THEN NEW.gone_at WHEN was_gone THEN NEW.last_seen ELSE NEW.changed_at END,
           NEW.url, NEW.crawl, NEW.data::text
    FROM sinks WHERE sinks.spider = NEW.spider ORDER BY sinks.id;
    RETURN NULL;
END
$$;

-- As in step 4, with a trigger that also runs when an item goes or comes back.
CREATE OR REPLACE FUNCTION note_changes() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('shoal outbox ' || current_schema(), 0));
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'items'::regclass AND tgname = 'item_is_new') THEN
        CREATE TRIGGER item_is_new AFTER INSERT ON items FOR EACH ROW EXECUTE FUNCTION note_change();
    END IF;
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'items'::regclass AND tgname = 'item_has_moved') THEN
        DROP TRIGGER IF EXISTS item_has_changed ON items;
        CREATE TRIGGER item_has_moved AFTER UPDATE ON items
            FOR EACH ROW WHEN (NEW.version > OLD.version OR (NEW.gone_at IS NULL) <> (OLD.gone_at IS NULL))
            EXECUTE FUNCTION note_change();
    END IF;
END
$$;

DO $$
BEGIN
    IF EXISTS (SELECT FROM sinks) THEN
        PERFORM note_changes();
    END IF;
END
$$;
