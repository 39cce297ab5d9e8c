-- Deletes unique keys that nobody holds any more, in a window of the keys' order. A key that an enqueue is looking
-- at is left to it; and so is one that was taken after this statement began: its row has another ctid then, which
-- the statement's snapshot does not show.
-- $1 the key after which the window begins · $2 how many keys it has
-- Answers the last key of the window (NULL: the end was reached) and how many were deleted.
WITH seen AS MATERIALIZED (
    SELECT ctid, key, job_id, expires_at, states FROM awa.unique_keys WHERE key > $1 ORDER BY key LIMIT $2
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM awa.unique_keys u
    USING seen
    WHERE u.ctid = seen.ctid
      AND (seen.expires_at <= now()
           OR NOT EXISTS (SELECT FROM awa.jobs j WHERE j.id = seen.job_id AND j.state = ANY (seen.states)))
    RETURNING 1
)
SELECT (SELECT max(key) FROM seen) AS last_key, (SELECT count(*) FROM seen) AS seen, (SELECT count(*) FROM gone) AS deleted
