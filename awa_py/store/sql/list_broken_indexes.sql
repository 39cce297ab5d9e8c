-- The indexes, of partitions too, that are invalid: their creation failed or is still running.
SELECT t.relname AS table_name, i.relname AS index_name
FROM pg_index x
JOIN pg_class i ON i.oid = x.indexrelid
JOIN pg_class t ON t.oid = x.indrelid
JOIN pg_namespace n ON n.oid = t.relnamespace
WHERE n.nspname = 'awa' AND NOT (x.indisvalid AND x.indisready AND x.indislive)
ORDER BY t.relname, i.relname
