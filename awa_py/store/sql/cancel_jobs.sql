-- available, scheduled, retryable, waiting → cancelled; a running job is marked, and its worker told.
-- $1 ids · $2 states · $3 leases that they must have (both NULL: any)
-- Answers, for each that it found unfinished: cancelled, or requested.
WITH wanted AS (SELECT * FROM unnest($1::bigint[], $2::text[], $3::int[]) AS w(job_id, in_state, with_lease)),
ready AS (
    DELETE FROM awa.ready USING wanted
    WHERE id = job_id AND (in_state IS NULL OR (in_state = 'available' AND lease = with_lease))
    RETURNING {carried}, run_at, errors, attempt, lease
),
later AS (
    DELETE FROM awa.scheduled USING wanted
    WHERE id = job_id AND (in_state IS NULL OR (in_state = state AND lease = with_lease))
    RETURNING {carried}, run_at, errors, attempt, lease
),
stopped AS (SELECT * FROM ready UNION ALL SELECT * FROM later),
buried AS (
    INSERT INTO awa.dead (state, {carried}, run_at, errors, attempt, lease)
    SELECT 'cancelled', {carried}, run_at, awa.append_error(errors, attempt, 'cancelled by user'), attempt, lease
    FROM stopped
),
asked AS (
    UPDATE awa.running SET cancel_requested_at = coalesce(cancel_requested_at, now())
    WHERE id = ANY (ARRAY(
        SELECT id FROM awa.running JOIN wanted ON id = job_id
        WHERE in_state IS NULL OR (in_state = 'running' AND lease = with_lease)
        ORDER BY id  -- as their workers lock them, who write to these rows too
        FOR UPDATE OF running
    ))
    RETURNING id, lease
),
told AS MATERIALIZED (SELECT id, pg_notify('awa', 'cancel:' || id || ':' || lease) FROM asked)
SELECT id, 'cancelled' AS answer FROM stopped
UNION ALL
SELECT id, 'requested' FROM told
