-- The number of connections and their limits: of the server, of this database, of this role (-1: no limit). `reserved`
-- connections are only for administrators.
WITH clients AS MATERIALIZED (
    SELECT datid, usesysid
    FROM pg_stat_activity
    WHERE usesysid IS NOT NULL AND coalesce(backend_type, 'client backend') = 'client backend'
)
SELECT current_setting('max_connections')::int AS server_limit,
       current_setting('superuser_reserved_connections')::int
       + coalesce(current_setting('reserved_connections', true)::int, 0) AS reserved,
       (SELECT count(*) FROM clients)::int AS server_used,
       d.datconnlimit AS database_limit,
       (SELECT count(*) FROM clients WHERE datid = d.oid)::int AS database_used,
       r.rolconnlimit AS role_limit,
       (SELECT count(*) FROM clients WHERE usesysid = r.oid)::int AS role_used
FROM pg_database d CROSS JOIN pg_roles r
WHERE d.datname = current_database() AND r.rolname = current_user
