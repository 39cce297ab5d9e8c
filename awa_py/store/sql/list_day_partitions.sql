-- The days (UTC) from today on, with the name of each day's partition of completed jobs, and whether a table of that
-- name exists and is attached.
-- $1 the number of days after today
WITH attached AS (
    SELECT child.relname
    FROM pg_inherits
    JOIN pg_class child ON child.oid = inhrelid
    JOIN pg_class parent ON parent.oid = inhparent
    JOIN pg_namespace n ON n.oid = parent.relnamespace
    WHERE n.nspname = 'awa' AND parent.relname = 'completed'
)
SELECT day, name, EXISTS (SELECT FROM attached WHERE relname = name) AS attached,
       EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = 'awa' AND c.relname = name) AS exists
FROM (SELECT day, 'completed_' || to_char(day, 'YYYYMMDD') AS name
      FROM (SELECT (now() AT TIME ZONE 'UTC')::date + g AS day FROM generate_series(0, $1::int) AS g) AS days) AS named
ORDER BY day
