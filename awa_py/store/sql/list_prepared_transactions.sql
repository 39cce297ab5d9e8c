-- Two-phase transactions of this database that have not ended for a long time, oldest first.
-- $1 minimum age
SELECT gid, owner::text AS role, extract(epoch FROM clock_timestamp() - prepared)::float8 AS open_s
FROM pg_prepared_xacts
WHERE database = current_database() AND prepared < clock_timestamp() - $1::interval
ORDER BY prepared
