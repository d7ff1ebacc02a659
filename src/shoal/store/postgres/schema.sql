-- The tables of PostgresStore, step 1. Run once, inside the schema of the store, under its advisory lock.
-- Guarantee: one row per item however often it is written, newer fences win; one line per attempt in the fetch log.
-- Text is compared byte by byte (COLLATE "C"): the order of a stream does not change with the server's locale.

CREATE TABLE schema_version (version integer NOT NULL);

-- Partitioned: each index stays small enough for memory, and vacuum works on an eighth at a time.
CREATE TABLE items (
    spider     text        COLLATE "C" NOT NULL,
    key        text        COLLATE "C" NOT NULL,
    crawl      text        COLLATE "C" NOT NULL, -- the crawl that wrote the row last
    url        text        COLLATE "C" NOT NULL,
    host       text        COLLATE "C" NOT NULL,
    data       jsonb       NOT NULL,
    fence      bigint      NOT NULL,             -- the token of the newest scrape: an older one changes nothing
    version    integer     NOT NULL DEFAULT 1,   -- counts the contents the item has had
    first_seen timestamptz NOT NULL,
    last_seen  timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,             -- when the present content came
    PRIMARY KEY (spider, key)                    -- makes writing again harmless; streams go by it
) PARTITION BY HASH (key);

-- People ask for an item by the URL of its page. Hash: URLs may be longer than a btree takes.
CREATE INDEX items_by_url ON items USING hash (url);
-- All items of a site.
CREATE INDEX items_by_host ON items (host);
-- "What is new since yesterday". Not on last_seen: that moves with every visit, and without an index on it an unchanged
-- item is rewritten inside its disk page, touching no index.
CREATE INDEX items_by_change ON items (changed_at);

-- The former contents of items: written only where versions are kept.
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
        -- Room in each disk page for the next content of its rows, beside the one that readers may still see.
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
    -- A line that is written again, because the answer was lost, stays one line. Also finds the lines of a task.
    UNIQUE (crawl, key, token, at)
) PARTITION BY RANGE (at);

-- What a site did, and when.
CREATE INDEX fetches_by_host ON fetches (host, at);
-- What became of a URL. Hash: URLs may be longer than a btree takes.
CREATE INDEX fetches_by_url ON fetches USING hash (url);

-- For times without a week: of a wrong clock, or of a line that comes after its week was dropped.
CREATE TABLE fetches_other PARTITION OF fetches DEFAULT;

-- Make the week of a time if it is near now; gives whether it is there. Safe for any number of callers at once.
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
    -- Not to_regclass: it caches that a table did not exist a moment ago.
    IF EXISTS (SELECT FROM pg_tables WHERE schemaname = current_schema() AND tablename = week) THEN
        RETURN true;
    END IF;
    -- Lines of this week may be in fetches_other, from a clock that was early. None may be added while they move.
    LOCK TABLE fetches_other IN ACCESS EXCLUSIVE MODE;
    -- Attached, not created as a partition: that would wait for every reader of the log and keep out its writers.
    EXECUTE format('CREATE TABLE %I (LIKE fetches INCLUDING ALL)', week);
    EXECUTE format(
        'WITH moved AS (DELETE FROM fetches_other WHERE at >= %L AND at < %L RETURNING *) INSERT INTO %I TABLE moved',
        monday, monday + interval '7 days', week);
    EXECUTE format(
        'ALTER TABLE fetches ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', week, monday, monday + interval '7 days');
    RETURN true;
END
$$;

-- The weeks that ended before a time.
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

-- Items that have had more than one content, the present one.
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
