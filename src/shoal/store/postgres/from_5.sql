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

-- These two are no single expression, which a statement on one item would plan anew: the session keeps their plans. They
-- name nothing of our schema: readers of a view have another path.

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

-- A time without a zone is UTC. What comes to the cast, cannot fail there.
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
    -- Beyond microseconds the server would round up.
    given := replace(regexp_replace(given, '([.,][0-9]{6})[0-9]+', '\1'), ',', '.');
    at := CASE WHEN length(given) = 10 THEN given || 'T00:00Z' WHEN given ~ '(Z|[+-][0-9]{2}:?[0-9]{2})$' THEN given
               ELSE given || 'Z' END;
    -- An offset may lead beyond the years that readers of any language know.
    RETURN CASE WHEN at >= timestamptz '0001-01-01 00:00Z' AND at < timestamptz '10000-01-01 00:00Z' THEN at END;
END
$$;
