-- The tables of PostgresStore. Runs once, in the schema of the store, under its advisory lock. Guarantee: one row per
-- item however often it is written, newer fences win; one line per attempt in the fetch log. Text is compared byte by
-- byte (COLLATE "C"): the order of a stream does not depend on the locale of the server.

CREATE TABLE schema_version (version integer NOT NULL);

-- Partitioned: each index stays small enough for memory, and vacuum works on an eighth at a time.
CREATE TABLE items (
    spider     text        COLLATE "C" NOT NULL,
    key        text        COLLATE "C" NOT NULL,
    crawl      text        COLLATE "C" NOT NULL, -- the crawl that wrote the row last
    url        text        COLLATE "C" NOT NULL,
    host       text        COLLATE "C" NOT NULL,
    data       jsonb       NOT NULL,
    fence      bigint      NOT NULL,             -- token of the newest scrape: an older scrape changes nothing
    version    integer     NOT NULL DEFAULT 1,   -- counts the contents so far
    first_seen timestamptz NOT NULL,
    last_seen  timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,             -- when the present content came
    gone_at       timestamptz,                   -- since when it is gone; a gone item is also missing
    missing_since timestamptz,                   -- since when its page lacks it
    written_at    timestamptz,                   -- time of the last write, if only seen since
    moves      integer     NOT NULL DEFAULT 0,   -- how often it left or came back: `version` + `moves`
                                                 -- numbers the changes in the outbox
    left_at    timestamptz,                      -- the last time that it was gone and came back
    back_at    timestamptz,
    PRIMARY KEY (spider, key)                    -- makes writing again harmless; streams page by it
) PARTITION BY HASH (key);

-- For finding items by the URL of their page. Hash: URLs may be longer than a btree accepts.
CREATE INDEX items_by_url ON items USING hash (url);
-- All items of a site.
CREATE INDEX items_by_host ON items (host);
-- "What is new since yesterday". Not on last_seen, which changes with every visit: without an index on it, an unchanged
-- item is rewritten within its disk page and touches no index.
CREATE INDEX items_by_change ON items (changed_at);
-- Only items that may be marked gone next: nearly all rows are not in this index.
CREATE INDEX items_missing ON items (missing_since) WHERE missing_since IS NOT NULL AND gone_at IS NULL;

-- The former contents of items, only where versions are kept.
CREATE TABLE item_versions (
    spider     text        COLLATE "C" NOT NULL,
    key        text        COLLATE "C" NOT NULL,
    version    integer     NOT NULL,
    crawl      text        COLLATE "C" NOT NULL,
    url        text        COLLATE "C" NOT NULL,
    data       jsonb       NOT NULL,
    changed_at timestamptz NOT NULL,
    PRIMARY KEY (spider, key, version)
) PARTITION BY HASH (key);

DO $$
BEGIN
    FOR part IN 0..7 LOOP
        -- Room in each disk page for the next version of its rows, beside the version that readers may still see.
        EXECUTE format(
            'CREATE TABLE items_%s PARTITION OF items FOR VALUES WITH (MODULUS 8, REMAINDER %s) WITH (fillfactor = 85)',
            part, part);
        EXECUTE format(
            'CREATE TABLE item_versions_%s PARTITION OF item_versions FOR VALUES WITH (MODULUS 8, REMAINDER %s)',
            part, part);
    END LOOP;
END
$$;

-- Every attempt at every task, a partition per week (Monday, UTC). Retention drops whole weeks.
CREATE TABLE fetches (
    crawl        text             COLLATE "C" NOT NULL,
    key          bigint           NOT NULL,
    url          text             COLLATE "C" NOT NULL,
    host         text             COLLATE "C" NOT NULL,
    final_url    text             COLLATE "C" NOT NULL,
    status       integer          NOT NULL,
    outcome      text             COLLATE "C" NOT NULL,
    attempt      integer          NOT NULL,
    token        bigint           NOT NULL,
    worker       text             COLLATE "C" NOT NULL,
    exit         text             COLLATE "C" NOT NULL,
    size         bigint           NOT NULL,
    content_hash text             COLLATE "C" NOT NULL,
    archived     text             COLLATE "C" NOT NULL,
    elapsed      double precision NOT NULL,
    error        text             COLLATE "C" NOT NULL,
    parent       bigint,
    at           timestamptz      NOT NULL,
    request      text             COLLATE "C" NOT NULL DEFAULT '', -- method, size and hash of the body; empty: a plain GET
    item_keys    text             COLLATE "C" NOT NULL DEFAULT '',
    etag         text             COLLATE "C" NOT NULL DEFAULT '',
    last_modified text            COLLATE "C" NOT NULL DEFAULT '',
    -- A line that is written again, after a lost reply, stays one line. Also finds the lines of a task.
    UNIQUE (crawl, key, token, at)
) PARTITION BY RANGE (at);

-- What a site did, and when.
CREATE INDEX fetches_by_host ON fetches (host, at);
-- The attempts at a URL. Hash: URLs may be longer than a btree accepts.
CREATE INDEX fetches_by_url ON fetches USING hash (url);

-- For times without a partition: of a wrong clock, or of a line that comes after its week was dropped.
CREATE TABLE fetches_other PARTITION OF fetches DEFAULT;

-- Create the partition for a time if it is near now; returns whether it exists. Safe for concurrent callers.
CREATE FUNCTION add_week(at timestamptz) RETURNS boolean LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    monday timestamptz := date_trunc('week', add_week.at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
    week   text := 'fetches_' || to_char(monday AT TIME ZONE 'UTC', 'YYYYMMDD');
BEGIN
    IF to_regclass(week) IS NOT NULL THEN
        RETURN true;
    END IF;
    IF monday NOT BETWEEN now() - interval '21 days' AND now() + interval '14 days' THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('shoal week ' || current_schema(), 0));
    -- Not to_regclass: it caches that a table does not exist.
    IF EXISTS (SELECT FROM pg_tables WHERE schemaname = current_schema() AND tablename = week) THEN
        RETURN true;
    END IF;
    -- fetches_other may have lines of this week, from a fast clock. None may be added while they move.
    LOCK TABLE fetches_other IN ACCESS EXCLUSIVE MODE;
    -- Attached, not created as a partition: that would wait for every reader of the log and lock out its writers.
    EXECUTE format('CREATE TABLE %I (LIKE fetches INCLUDING ALL)', week);
    EXECUTE format(
        'WITH moved AS (DELETE FROM fetches_other WHERE at >= %L AND at < %L RETURNING *) INSERT INTO %I TABLE moved',
        monday, monday + interval '7 days', week);
    EXECUTE format(
        'ALTER TABLE fetches ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', week, monday, monday + interval '7 days');
    RETURN true;
END
$$;

-- The partitions of weeks that ended before a time.
CREATE FUNCTION weeks_before(at timestamptz) RETURNS SETOF text LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT relname::text FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'fetches'::regclass AND relname ~ '^fetches_\d{8}$'
      AND to_date(right(relname, 8), 'YYYYMMDD')::timestamp AT TIME ZONE 'UTC' + interval '7 days' <= weeks_before.at
    ORDER BY relname
$$;

-- `under` with the fields of `over` that are not null. Absent and null are the same.
CREATE FUNCTION filled(under jsonb, over jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT under || coalesce(
        (SELECT jsonb_object_agg(field.key, field.value) FROM jsonb_each(over) AS field WHERE field.value <> 'null'), '{}')
$$;

-- Items with more than one content so far: the present content.
CREATE VIEW items_changed AS SELECT * FROM items WHERE version > 1;

-- The latest line of each task.
CREATE VIEW fetches_latest AS SELECT DISTINCT ON (crawl, key) * FROM fetches ORDER BY crawl, key, token DESC, at DESC;

-- Requests, errors and times of each host in the last hour and in the last day.
CREATE VIEW host_health AS
SELECT span, host, requests, ok_share, errors, p50_elapsed, p95_elapsed, bytes FROM (
    SELECT span, host, sum(requests) AS requests,
           round(sum(requests) FILTER (WHERE outcome = 'ok') / sum(requests), 4) AS ok_share,
           jsonb_object_agg(outcome, requests) FILTER (WHERE outcome <> 'ok') AS errors,
           sum(bytes) AS bytes
    FROM (
        SELECT span, host, outcome, count(*) AS requests, sum(size) AS bytes
        FROM (VALUES ('hour', interval '1 hour'), ('day', interval '1 day')) AS spans (span, length)
        JOIN fetches ON at > now() - length GROUP BY span, host, outcome
    ) AS by_outcome GROUP BY span, host
) AS counted JOIN (
    SELECT span, host,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY elapsed) AS p50_elapsed,
           percentile_cont(0.95) WITHIN GROUP (ORDER BY elapsed) AS p95_elapsed
    FROM (VALUES ('hour', interval '1 hour'), ('day', interval '1 day')) AS spans (span, length)
    JOIN fetches ON at > now() - length GROUP BY span, host
) AS timed USING (span, host);

CREATE TABLE sinks (
    id            bigint           GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    spider        text             COLLATE "C" NOT NULL,
    url           text             COLLATE "C" NOT NULL, -- without secrets
    host          text             COLLATE "C" NOT NULL, -- the machine, for a file or loopback address; else empty
    has_secret    boolean          NOT NULL,
    added         timestamptz      NOT NULL DEFAULT now(),
    sent          bigint           NOT NULL DEFAULT 0,
    sent_at       timestamptz,
    trouble       text             COLLATE "C" NOT NULL DEFAULT '',
    trouble_since timestamptz,
    holder        text             COLLATE "C" NOT NULL DEFAULT '', -- the last process that locked the sink
    held_until    timestamptz      NOT NULL DEFAULT now(),
    UNIQUE (spider, url, host)
);

-- A row per sink; delivered rows are deleted one by one. No cursor: positions are not in the order of commits, so a
-- cursor would skip the rows of a slower transaction.
CREATE TABLE outbox (
    sink     bigint      NOT NULL,
    position bigint      GENERATED ALWAYS AS IDENTITY,
    key      text        COLLATE "C" NOT NULL,
    version  integer     NOT NULL,
    change   text        COLLATE "C" NOT NULL,
    at       timestamptz NOT NULL,
    url      text        COLLATE "C" NOT NULL,
    crawl    text        COLLATE "C" NOT NULL,
    data     text        NOT NULL, -- JSON as text: its length is known without reading it
    queued   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (sink, position)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

-- Runs while the item's row is locked. The next writer of the item waits for the commit and gets a later position, so
-- positions of one item are in order, and a reader that sees the later change sees the earlier one. With the rights of
-- its owner: a role that may write items may lack rights on the outbox. A change of an item that stays gone is not
-- sent: the item is sent whole when it comes back.
CREATE FUNCTION note_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
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

-- Called when a sink is added: without a sink, writing items calls no trigger. Waits for writing transactions: their
-- changes came before the sink.
CREATE FUNCTION note_changes() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
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

-- Item views and tables, see store/item_views.py.
CREATE TABLE item_views (
    name     text    COLLATE "C" PRIMARY KEY, -- of the view or table, in this schema
    spider   text    COLLATE "C" NOT NULL,
    is_table boolean NOT NULL,
    origin   text    NOT NULL,                -- where its columns were taken from, for people
    columns  text    NOT NULL,                -- JSON
    position text    COLLATE "C"              -- the last key that `fill` copied; NULL: filled
);

-- Convert a value of an item to a SQL type, NULL if it does not fit. These must never raise: values come from pages,
-- and one bad value must not make a view unreadable or an item unwritable.

CREATE FUNCTION item_text(value jsonb) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE jsonb_typeof(value) WHEN 'string' THEN value #>> '{}' END
$$;

CREATE FUNCTION item_mixed(value jsonb) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT value #>> '{}'
$$;

CREATE FUNCTION item_json(value jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN jsonb_typeof(value) <> 'null' THEN value END
$$;

CREATE FUNCTION item_integer(value jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN jsonb_typeof(value) = 'number' THEN
        CASE WHEN value::numeric BETWEEN -9223372036854775808 AND 9223372036854775807
                  AND value::numeric = trunc(value::numeric)
             THEN value::numeric::bigint END END
$$;

CREATE FUNCTION item_number(value jsonb) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN jsonb_typeof(value) = 'number' THEN
        CASE WHEN value::numeric = 0 OR abs(value::numeric) BETWEEN 1e-307 AND 1.7976931348623157e308
             THEN value::numeric::double precision END END
$$;

CREATE FUNCTION item_decimal(value jsonb) RETURNS numeric LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE jsonb_typeof(value)
        WHEN 'number' THEN value::numeric
        WHEN 'string' THEN CASE WHEN length(value #>> '{}') <= 1000 THEN
            CASE WHEN value #>> '{}' ~ '^[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?$' THEN (value #>> '{}')::numeric END END END
$$;

CREATE FUNCTION item_boolean(value jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN jsonb_typeof(value) = 'boolean' THEN value = 'true' END
$$;

-- These two are plpgsql, not one SQL expression: the session keeps their plans, while an expression is planned for each
-- item. They name nothing of this schema: readers of a view may have another search path.

CREATE FUNCTION item_date(value jsonb) RETURNS date LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    given text := value #>> '{}';
    days  int;
BEGIN
    IF jsonb_typeof(value) <> 'string' OR given !~ '^[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]$' OR given ~ '^0000' THEN
        RETURN NULL;
    END IF;
    days := extract(day FROM make_date(left(given, 4)::int, substr(given, 6, 2)::int, 1) + interval '1 month - 1 day');
    RETURN CASE WHEN right(given, 2)::int BETWEEN 1 AND days THEN given::date END;
END
$$;

-- A time without a zone is UTC. The pattern admits only texts that the cast accepts.
CREATE FUNCTION item_time(value jsonb) RETURNS timestamptz LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    given text := value #>> '{}';
    days  int;
    at    timestamptz;
BEGIN
    IF jsonb_typeof(value) <> 'string' OR length(given) > 40 OR given ~ '^0000' OR given !~
        '^[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]([T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9]([.,][0-9]+)?)?(Z|[+-](0[0-9]|1[0-4]):?[0-5][0-9])?)?$'
    THEN
        RETURN NULL;
    END IF;
    days := extract(day FROM make_date(left(given, 4)::int, substr(given, 6, 2)::int, 1) + interval '1 month - 1 day');
    IF substr(given, 9, 2)::int NOT BETWEEN 1 AND days THEN
        RETURN NULL;
    END IF;
    -- The server would round up digits beyond microseconds.
    given := replace(regexp_replace(given, '([.,][0-9]{6})[0-9]+', '\1'), ',', '.');
    at := CASE WHEN length(given) = 10 THEN given || 'T00:00Z' WHEN given ~ '(Z|[+-][0-9]{2}:?[0-9]{2})$' THEN given
               ELSE given || 'Z' END;
    -- An offset may lead outside of the years 1 to 9999, which not all languages can read.
    RETURN CASE WHEN at >= timestamptz '0001-01-01 00:00Z' AND at < timestamptz '10000-01-01 00:00Z' THEN at END;
END
$$;

-- The parts of the log that were moved into an archive.
CREATE TABLE log_parts (
    name     text        COLLATE "C" PRIMARY KEY, -- of the file
    week     date        NOT NULL,                -- its Monday
    archive  text        NOT NULL,
    lines    bigint      NOT NULL DEFAULT 0,
    moved_at timestamptz                          -- NULL: begun; the file may exist, its lines are still in the log
);

CREATE VIEW log_weeks AS
SELECT week, archive, sum(lines)::bigint AS lines, count(*) AS files, max(moved_at) AS moved_at
FROM log_parts WHERE moved_at IS NOT NULL AND lines > 0 GROUP BY week, archive;
