-- Delete unique keys that no job holds any more, in a window of the keys in order. Skips keys that an enqueue has
-- locked, and keys that were acquired after this statement began: such a row has a new ctid, which the snapshot does
-- not show.
-- $1 the key after which the window begins · $2 its number of keys
-- Returns the last key and the number of keys of the window, and how many were deleted.
WITH window_keys AS MATERIALIZED (
    SELECT ctid, key, job_id, expires_at, states FROM awa.unique_keys WHERE key > $1 ORDER BY key LIMIT $2
    FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM awa.unique_keys u
    USING window_keys
    WHERE u.ctid = window_keys.ctid
      AND (window_keys.expires_at <= now()
           OR NOT EXISTS (SELECT FROM awa.jobs j WHERE j.id = window_keys.job_id AND j.state = ANY (window_keys.states)))
    RETURNING 1
)
SELECT (SELECT max(key) FROM window_keys) AS last_key, (SELECT count(*) FROM window_keys) AS seen,
       (SELECT count(*) FROM deleted) AS deleted
