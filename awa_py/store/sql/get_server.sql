-- The server, and the login's role.
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS version_number,
       pg_is_in_recovery() AS in_recovery, current_user::text AS role,
       pg_has_role(current_user, 'pg_read_all_stats', 'usage') AS sees_all
