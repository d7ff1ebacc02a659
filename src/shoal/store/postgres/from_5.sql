-- Step 6: views and tables of items in columns of their own.

CREATE TABLE item_views (
    name     text    COLLATE "C" PRIMARY KEY, -- of the view or the table, which lies beside this one
    spider   text    COLLATE "C" NOT NULL,
    is_table boolean NOT NULL,
    origin   text    NOT NULL,                -- what its columns were taken from, for people
    columns  text    NOT NULL,                -- JSON
    position text    COLLATE "C"              -- up to which key a table is filled; NULL: it has all items
);

-- A value of an item as a type of the server; NULL if it does not fit. None of these may raise an error: the values come
-- from pages, and one of them must not make a view unreadable, or an item unwritable.

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
        CASE WHEN value::numeric = 0 OR abs(value::numeric) BETWEEN 1e-300 AND 1e308
             THEN value::numeric::double precision END END
$$;

CREATE FUNCTION item_decimal(value jsonb) RETURNS numeric LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE jsonb_typeof(value)
        WHEN 'number' THEN value::numeric
        WHEN 'string' THEN CASE WHEN length(value #>> '{}') <= 1000 THEN
            CASE WHEN value #>> '{}' ~ '^[+-]?[0-9]+(\.[0-9]*)?$' THEN (value #>> '{}')::numeric END END END
$$;

CREATE FUNCTION item_boolean(value jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN jsonb_typeof(value) = 'boolean' THEN value = 'true' END
$$;

-- A day of the calendar. The inner CASE is reached only by texts that the outer one lets through.
CREATE FUNCTION item_day(day text) RETURNS date LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN day ~ '^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$' AND day !~ '^0000' THEN
        CASE WHEN right(day, 2)::int <= extract(day FROM make_date(left(day, 4)::int, substr(day, 6, 2)::int, 1)
                                                + interval '1 month - 1 day')
             THEN make_date(left(day, 4)::int, substr(day, 6, 2)::int, right(day, 2)::int) END END
$$;

CREATE FUNCTION item_date(value jsonb) RETURNS date LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN jsonb_typeof(value) = 'string' AND length(value #>> '{}') = 10
                THEN item_day(value #>> '{}') END
$$;

-- A time without a zone is UTC. What follows the day is read by parts that cannot fail.
CREATE FUNCTION item_time(value jsonb) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN jsonb_typeof(value) = 'string' AND length(value #>> '{}') BETWEEN 10 AND 40 THEN
        CASE WHEN item_day(left(value #>> '{}', 10)) IS NOT NULL AND substr(value #>> '{}', 11) ~
            '^([T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9]([.,][0-9]{1,9})?)?(Z|[+-](0[0-9]|1[0-4]):?[0-5][0-9])?)?$'
        THEN (item_day(left(value #>> '{}', 10)) + coalesce(
                 substring(substr(value #>> '{}', 12) FROM '^[0-9:]+')::interval
                 + coalesce(substring(value #>> '{}' FROM '[.,]([0-9]{1,6})'), '0')::float8
                   / 10 ^ length(coalesce(substring(value #>> '{}' FROM '[.,]([0-9]{1,6})'), '0')) * interval '1 second',
                 interval '0')
             - CASE WHEN substr(value #>> '{}', 11) ~ '[+-]' THEN
                   (substring(substr(value #>> '{}', 11) FROM '([+-])') || '1')::int * (
                       substring(substr(value #>> '{}', 11) FROM '[+-]([0-9]{2})')::int * interval '1 hour'
                       + right(value #>> '{}', 2)::int * interval '1 minute')
               ELSE interval '0' END) AT TIME ZONE 'UTC' END END
$$;
