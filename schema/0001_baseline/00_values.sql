-- compatible: no

-- Which values the tables accept. The bodies are bound to their functions when they are created, whatever the search
-- path of a caller, and PostgreSQL inlines them into the constraints.

-- Return whether all programs can read the time: Python's calendar ends with the year 9999, and conversions between
-- timezones need room.
CREATE FUNCTION awa.is_time(value timestamptz) RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN value >= timestamp '1900-01-01' AT TIME ZONE 'UTC' AND value < timestamp '9000-01-01' AT TIME ZONE 'UTC';

-- Return whether the duration is 0 to 1000 years, so that adding it to now() or subtracting it cannot overflow.
-- Comparisons count a month as 30 days: '1000000 years -360000000 days' compares as 0, but overflows. So months and
-- days are checked on their own, too.
CREATE FUNCTION awa.is_duration(value interval) RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN value >= interval '0' AND value <= interval '365000 days'
       AND date_part('year', value) BETWEEN -2000 AND 2000 AND date_part('day', value) BETWEEN -730000 AND 730000;

-- Return whether the text has no control characters, and none that change the direction of the text around them. They
-- would forge lines of logs and of terminals. The rule of `is_plain` in Python is the same.
CREATE FUNCTION awa.is_plain(value text) RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN value !~ '[\u0001-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]';

-- Return whether the text is a name: of a kind, a schedule, a rate limit, a tag.
CREATE FUNCTION awa.is_name(value text) RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN length(value) BETWEEN 1 AND 200 AND btrim(value) <> '' AND awa.is_plain(value);

-- Return whether the text is the name of a queue. Commas separate queues in settings and options.
CREATE FUNCTION awa.is_queue_name(value text) RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN awa.is_name(value) AND strpos(value, ',') = 0;

-- Return whether this is a list of names: one dimension, and no NULL.
CREATE FUNCTION awa.are_names(value text[]) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT
RETURN coalesce(array_ndims(value), 1) = 1
       AND (SELECT coalesce(bool_and(awa.is_name(name) IS TRUE), true) FROM unnest(value) AS name);

-- Return whether Python can read the row of a job. A claim returns other rows without their values.
CREATE FUNCTION awa.is_readable(created_at timestamptz, run_at timestamptz, expires_at timestamptz, timeout interval)
RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN awa.is_time(created_at) AND awa.is_time(run_at) AND awa.is_time(expires_at) IS NOT FALSE
       AND awa.is_duration(timeout) IS NOT FALSE;

-- Return the time, or the nearest one that Python can read: an operator must be able to look at any row. These two call
-- no other function, because a reader may call only what is granted to it.
CREATE FUNCTION awa.readable_time(value timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE
RETURN CASE WHEN value < timestamp '1900-01-01' AT TIME ZONE 'UTC' THEN timestamp '1900-01-01' AT TIME ZONE 'UTC'
            WHEN value > timestamp '9000-01-01' AT TIME ZONE 'UTC' THEN timestamp '9000-01-01' AT TIME ZONE 'UTC'
            ELSE value END;

CREATE FUNCTION awa.readable_duration(value interval) RETURNS interval LANGUAGE sql IMMUTABLE
RETURN CASE WHEN value < interval '-365000 days' OR date_part('year', value) < -2000 THEN interval '-365000 days'
            WHEN value > interval '365000 days' OR date_part('year', value) > 2000 THEN interval '365000 days'
            ELSE value END;

-- What a waiting job waits for: {"signals": [NAME, …], "children": [{"ids": [[FIRST, LAST], …], "fail_fast": true}, …]}.
CREATE FUNCTION awa.are_waits(waits jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT jsonb_typeof(waits) = 'object'
           AND coalesce(jsonb_typeof(waits -> 'signals'), 'array') = 'array'
           AND coalesce(jsonb_typeof(waits -> 'children'), 'array') = 'array'
           AND NOT EXISTS (
               SELECT FROM jsonb_array_elements(CASE WHEN jsonb_typeof(waits -> 'children') = 'array'
                                                     THEN waits -> 'children' ELSE '[]' END) AS awaited
               WHERE jsonb_typeof(awaited -> 'ids') IS DISTINCT FROM 'array'
                  OR jsonb_typeof(awaited -> 'fail_fast') IS DISTINCT FROM 'boolean'
                  OR EXISTS (
                      SELECT FROM jsonb_array_elements(CASE WHEN jsonb_typeof(awaited -> 'ids') = 'array'
                                                            THEN awaited -> 'ids' ELSE '[]' END) AS part
                      WHERE part::text !~ '^\[[0-9]{1,18}, [0-9]{1,18}\]$'));
END;
