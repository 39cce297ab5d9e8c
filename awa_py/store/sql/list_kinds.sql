-- What the code declares about its kinds.
-- $1 kind, NULL: all
SELECT kind, queue, default_queue, priority, max_attempts, timeout, delay, tags, metadata::text AS metadata,
       concurrency_key, key_parts, concurrency_limit, ordered, unique_by, unique_key, unique_for, unique_states,
       args_schema::text AS args_schema, version, declared_at, replaced_versions
FROM awa.kinds
WHERE $1::text IS NULL OR kind = $1
ORDER BY kind
