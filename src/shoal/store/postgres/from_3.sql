-- Step 4: the outbox. A worker of the former version that still runs can go on writing: its changes are kept as well.

CREATE TABLE sinks (
    id            bigint           GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    spider        text             COLLATE "C" NOT NULL,
    url           text             COLLATE "C" NOT NULL, -- without secrets
    host          text             COLLATE "C" NOT NULL, -- the machine of a file or a loopback address; else empty
    has_secret    boolean          NOT NULL,
    added         timestamptz      NOT NULL DEFAULT now(),
    sent          bigint           NOT NULL DEFAULT 0,
    sent_at       timestamptz,
    trouble       text             COLLATE "C" NOT NULL DEFAULT '',
    trouble_since timestamptz,
    holder        text             COLLATE "C" NOT NULL DEFAULT '', -- who has the duty to send
    held_until    timestamptz      NOT NULL DEFAULT now(),
    UNIQUE (spider, url, host)
);

-- A row per sink: exactly the rows that it has are deleted. No cursor: positions are not in the order of commits, and one
-- that moved on would skip what a slower transaction commits behind it.
CREATE TABLE outbox (
    sink     bigint      NOT NULL,
    position bigint      GENERATED ALWAYS AS IDENTITY,
    key      text        COLLATE "C" NOT NULL,
    version  integer     NOT NULL,
    change   text        COLLATE "C" NOT NULL,
    at       timestamptz NOT NULL,
    url      text        COLLATE "C" NOT NULL,
    crawl    text        COLLATE "C" NOT NULL,
    data     text        NOT NULL, -- as the item's JSON reads: its length is known without reading it
    queued   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (sink, position)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

-- Runs while the item's row is locked. Whoever changes the item next waits for the commit and draws a later position:
-- so positions of one item are in order, and a reader that sees the later change sees the earlier one.
-- With the rights of its owner: who may write items may not be allowed to write here.
CREATE FUNCTION note_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO outbox (sink, key, version, change, at, url, crawl, data)
    SELECT sinks.id, NEW.key, NEW.version, CASE TG_OP WHEN 'INSERT' THEN 'new' ELSE 'changed' END, NEW.changed_at,
           NEW.url, NEW.crawl, NEW.data::text
    FROM sinks WHERE sinks.spider = NEW.spider ORDER BY sinks.id;
    RETURN NULL;
END
$$;

-- Called when a sink is added. Until the first one comes, writing items calls no trigger.
-- Waits for transactions that write: what they write came before the sink.
CREATE FUNCTION note_changes() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('shoal outbox ' || current_schema(), 0));
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'items'::regclass AND tgname = 'item_is_new') THEN
        CREATE TRIGGER item_is_new AFTER INSERT ON items FOR EACH ROW EXECUTE FUNCTION note_change();
        CREATE TRIGGER item_has_changed AFTER UPDATE ON items
            FOR EACH ROW WHEN (NEW.version > OLD.version) EXECUTE FUNCTION note_change();
    END IF;
END
$$;
