-- Transactions of this database that have been open for a long time, oldest first. Without the texts of queries.
-- $1 minimum age · $2 at most this many
SELECT pid, usename::text AS role, application_name AS application, coalesce(host(client_addr), 'a local socket') AS client,
       state LIKE 'idle%' AS idle, backend_xmin IS NOT NULL OR backend_xid IS NOT NULL AS blocks_vacuum,
       extract(epoch FROM clock_timestamp() - xact_start)::float8 AS open_s
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
  AND backend_type NOT IN ('autovacuum worker', 'parallel worker')
  AND xact_start < clock_timestamp() - $1::interval
ORDER BY xact_start
LIMIT $2
