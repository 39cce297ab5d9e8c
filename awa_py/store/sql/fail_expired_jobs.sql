-- available, scheduled, retryable → failed, for jobs whose absolute deadline passed before they could run (again).
-- $1 how many at the most of each
WITH ready AS (
    DELETE FROM awa.ready
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM awa.ready WHERE expires_at <= now() ORDER BY expires_at
                            LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING {carried}, run_at, errors, attempt, lease
),
later AS (
    DELETE FROM awa.scheduled
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM awa.scheduled WHERE expires_at <= now() ORDER BY expires_at
                            LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING {carried}, run_at, errors, attempt, lease
),
expired AS (SELECT * FROM ready UNION ALL SELECT * FROM later),
put AS (
    INSERT INTO awa.dead (state, {carried}, run_at, errors, attempt, lease)
    SELECT 'failed', {carried}, run_at, awa.append_error(errors, attempt, 'hard deadline exceeded'), attempt, lease
    FROM expired
)
SELECT queue, count(*) FROM expired GROUP BY queue
