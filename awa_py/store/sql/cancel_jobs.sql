-- available, scheduled, retryable, waiting → cancelled. A running job is marked, and its worker notified.
-- $1 ids · $2 the state and the lease that each job must have, a JSON object: {"17": "available 0"} (NULL: any)
-- Returns `cancelled` or `requested` for each unfinished job, and its parent.
WITH seen AS MATERIALIZED (SELECT $2::text::jsonb AS by_id),
deleted_ready AS (
    DELETE FROM awa.ready
    WHERE id = ANY ($1::bigint[]) AND ($2::text IS NULL OR (SELECT by_id FROM seen) ->> id::text = 'available ' || lease)
    RETURNING {carried}, run_at, errors, attempt, lease
),
deleted_scheduled AS (
    DELETE FROM awa.scheduled
    WHERE id = ANY ($1::bigint[]) AND ($2::text IS NULL OR (SELECT by_id FROM seen) ->> id::text = state || ' ' || lease)
    RETURNING {carried}, run_at, errors, attempt, lease
),
deleted AS (SELECT * FROM deleted_ready UNION ALL SELECT * FROM deleted_scheduled),
cancelled AS (
    INSERT INTO awa.dead (state, {carried}, run_at, errors, attempt, lease)
    SELECT 'cancelled', {carried}, run_at, awa.append_error(errors, attempt, 'cancelled by user'), attempt, lease
    FROM deleted
),
requested AS (
    UPDATE awa.running SET cancel_requested_at = coalesce(cancel_requested_at, now())
    WHERE id = ANY (ARRAY(
        SELECT id FROM awa.running
        WHERE id = ANY ($1::bigint[]) AND ($2::text IS NULL OR (SELECT by_id FROM seen) ->> id::text = 'running ' || lease)
        ORDER BY id  -- workers write to these rows too, and lock them in the same order
        FOR UPDATE
    ))
    RETURNING id, parent_id, lease
),
notified AS MATERIALIZED (SELECT id, parent_id, pg_notify('awa', 'cancel:' || id || ':' || lease) FROM requested)
SELECT id, 'cancelled' AS answer, parent_id FROM deleted
UNION ALL
SELECT id, 'requested', parent_id FROM notified
