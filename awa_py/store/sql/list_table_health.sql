-- The tables with their dead and live rows (from statistics), sizes, the number of dead rows at which autovacuum
-- starts, whether it is enabled and truncates the table, and the seconds since the last vacuum.
SELECT c.relname::text AS name, s.n_dead_tup AS dead, greatest(s.n_live_tup, c.reltuples::bigint) AS live,
       c.reltuples >= 0 AS counted, pg_relation_size(c.oid) AS bytes, pg_indexes_size(c.oid) AS index_bytes,
       coalesce(o.enabled, true) AS autovacuum, coalesce(o.truncated, true) AS truncated,
       (coalesce(o.threshold, current_setting('autovacuum_vacuum_threshold')::float8)
        + coalesce(o.scale, current_setting('autovacuum_vacuum_scale_factor')::float8) * greatest(c.reltuples, 0))::float8
           AS vacuum_threshold,
       extract(epoch FROM clock_timestamp() - greatest(s.last_autovacuum, s.last_vacuum))::float8 AS since_vacuum_s
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_stat_all_tables s ON s.relid = c.oid
CROSS JOIN LATERAL (
    SELECT bool_and(option_value::boolean) FILTER (WHERE option_name = 'autovacuum_enabled') AS enabled,
           bool_and(option_value::boolean) FILTER (WHERE option_name = 'vacuum_truncate') AS truncated,
           max(option_value::float8) FILTER (WHERE option_name = 'autovacuum_vacuum_threshold') AS threshold,
           max(option_value::float8) FILTER (WHERE option_name = 'autovacuum_vacuum_scale_factor') AS scale
    FROM pg_options_to_table(c.reloptions)
    WHERE option_name IN ('autovacuum_enabled', 'vacuum_truncate', 'autovacuum_vacuum_threshold',
                          'autovacuum_vacuum_scale_factor')) AS o
WHERE n.nspname = 'awa' AND c.relkind = 'r'
ORDER BY c.relname
