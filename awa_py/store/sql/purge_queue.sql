-- Delete the available, scheduled and retryable jobs of a queue. Bounded.
-- $1 queue · $2 at most this many of each table, and of jobs with a concurrency key
WITH ready AS (
    DELETE FROM awa.ready
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM awa.ready WHERE queue = $1 AND concurrency_key IS NULL
                            LIMIT $2 FOR UPDATE SKIP LOCKED)
                      || ARRAY(SELECT ctid FROM awa.ready WHERE queue = $1 AND concurrency_key IS NOT NULL
                               LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING 1
),
scheduled AS (
    DELETE FROM awa.scheduled
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM awa.scheduled WHERE queue = $1 AND state <> 'waiting'
                            LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT (SELECT count(*) FROM ready) + (SELECT count(*) FROM scheduled) AS deleted
