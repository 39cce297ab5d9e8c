-- available, scheduled, retryable → failed, for jobs whose deadline passed before they could run (again). Bounded.
-- $1 at most this many jobs of each table
-- Returns the number of jobs by queue.
WITH deleted_ready AS (
    DELETE FROM awa.ready
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM awa.ready WHERE expires_at <= now() ORDER BY expires_at
                            LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING {carried}, run_at, errors, attempt, lease
),
deleted_scheduled AS (
    DELETE FROM awa.scheduled
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM awa.scheduled WHERE expires_at <= now() ORDER BY expires_at
                            LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING {carried}, run_at, errors, attempt, lease
),
expired AS (SELECT * FROM deleted_ready UNION ALL SELECT * FROM deleted_scheduled),
failed AS (
    INSERT INTO awa.dead (state, {carried}, run_at, errors, attempt, lease)
    SELECT 'failed', {carried}, run_at, awa.append_error(errors, attempt, 'hard deadline exceeded'), attempt, lease
    FROM expired
)
SELECT queue, count(*) AS jobs FROM expired GROUP BY queue
