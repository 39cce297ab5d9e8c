-- Write what an app declares about its kinds, unless a newer version of the app did. A version is older if it once
-- declared the kind and was replaced. Unchanged rows are not written.
-- $1 text: a JSON array of objects with the columns of awa.kinds. $2 text: the app's version.
-- $3 boolean: make this version the newest.
-- Returns each kind, whether it was written, whether another declaration holds instead, and which version's holds.
WITH input AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset($1::text::jsonb) AS (
        kind text, queue text, default_queue text, priority smallint, max_attempts smallint, timeout interval,
        delay interval, tags text[], metadata jsonb, concurrency_key text, key_parts text[], concurrency_limit smallint,
        ordered boolean, unique_by text[], unique_key text, unique_for interval, unique_states text[],
        args_schema jsonb)
),
written AS (
    INSERT INTO awa.kinds AS old (
        kind, queue, default_queue, priority, max_attempts, timeout, delay, tags, metadata, concurrency_key, key_parts,
        concurrency_limit, ordered, unique_by, unique_key, unique_for, unique_states, args_schema, version)
    SELECT kind, queue, default_queue, priority, max_attempts, timeout, delay, tags, metadata, concurrency_key, key_parts,
           concurrency_limit, ordered, unique_by, unique_key, unique_for, unique_states, args_schema, $2::text
    FROM input ORDER BY kind  -- two workers that start at once cannot deadlock
    ON CONFLICT (kind) DO UPDATE SET
        queue = excluded.queue, default_queue = excluded.default_queue, priority = excluded.priority,
        max_attempts = excluded.max_attempts, timeout = excluded.timeout, delay = excluded.delay, tags = excluded.tags,
        metadata = excluded.metadata, concurrency_key = excluded.concurrency_key, key_parts = excluded.key_parts,
        concurrency_limit = excluded.concurrency_limit, ordered = excluded.ordered, unique_by = excluded.unique_by,
        unique_key = excluded.unique_key, unique_for = excluded.unique_for, unique_states = excluded.unique_states,
        args_schema = excluded.args_schema, version = excluded.version, declared_at = now(),
        replaced_versions = awa.replace_version(old.replaced_versions, old.version, excluded.version)
    WHERE ($3::boolean OR excluded.version <> ALL (old.replaced_versions))
      AND to_jsonb(old) - '{declared_at,replaced_versions}'::text[]
          IS DISTINCT FROM to_jsonb(excluded) - '{declared_at,replaced_versions}'::text[]
    RETURNING kind, version, declared_at
)
SELECT kind, written.kind IS NOT NULL AS is_written,
       written.kind IS NULL AND to_jsonb(input)
           IS DISTINCT FROM to_jsonb(kinds) - '{version,declared_at,replaced_versions}'::text[] AS is_overruled,
       coalesce(written.version, kinds.version) AS version, coalesce(written.declared_at, kinds.declared_at) AS declared_at
FROM input LEFT JOIN written USING (kind) LEFT JOIN awa.kinds USING (kind)
ORDER BY kind
