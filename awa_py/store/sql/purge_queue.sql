-- Deletes what waits in a queue: available, scheduled and retryable jobs. Bounded.
-- $1 name · $2 how many at the most of each
WITH ready AS (
    DELETE FROM awa.ready
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM awa.ready WHERE queue = $1 AND concurrency_key IS NULL
                            LIMIT $2 FOR UPDATE SKIP LOCKED)
                      || ARRAY(SELECT ctid FROM awa.ready WHERE queue = $1 AND concurrency_key IS NOT NULL
                               LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING 1
),
later AS (
    DELETE FROM awa.scheduled
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM awa.scheduled WHERE queue = $1 AND state <> 'waiting'
                            LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT (SELECT count(*) FROM ready) + (SELECT count(*) FROM later)
