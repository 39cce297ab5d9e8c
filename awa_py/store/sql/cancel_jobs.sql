-- available, scheduled, retryable, waiting → cancelled. A running job is marked, and its worker notified.
-- $1 ids · $2 states and $3 leases that the jobs must have (both NULL: any)
-- Returns `cancelled` or `requested` for each unfinished job.
WITH wanted AS (SELECT * FROM unnest($1::bigint[], $2::text[], $3::int[]) AS w(job_id, in_state, with_lease)),
deleted_ready AS (
    DELETE FROM awa.ready USING wanted
    WHERE id = job_id AND (in_state IS NULL OR (in_state = 'available' AND lease = with_lease))
    RETURNING {carried}, run_at, errors, attempt, lease
),
deleted_scheduled AS (
    DELETE FROM awa.scheduled USING wanted
    WHERE id = job_id AND (in_state IS NULL OR (in_state = state AND lease = with_lease))
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
        SELECT id FROM awa.running JOIN wanted ON id = job_id
        WHERE in_state IS NULL OR (in_state = 'running' AND lease = with_lease)
        ORDER BY id  -- workers write to these rows too, and lock them in the same order
        FOR UPDATE OF running
    ))
    RETURNING id, lease
),
notified AS MATERIALIZED (SELECT id, pg_notify('awa', 'cancel:' || id || ':' || lease) FROM requested)
SELECT id, 'cancelled' AS answer FROM deleted
UNION ALL
SELECT id, 'requested' FROM notified
