-- running → scheduled; or cancelled, if requested. The attempt does not count. Lease and worker guard each row.
-- $1 ids · $2 leases · $3 worker id · $4 delays
-- Returns the ids that the worker held.
WITH ended AS (
    DELETE FROM awa.running
    WHERE id = ANY ($1::bigint[])
      AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int
      AND worker_id = $3
    RETURNING *, now() + ((SELECT jsonb_object($1::bigint[]::text[], $4::interval[]::text[])) ->> id::text)::interval AS next_run
),
snoozed AS (
    INSERT INTO awa.scheduled (state, {carried}, run_at, errors, attempt, lease)
    SELECT 'scheduled', {carried}, next_run, errors, attempt - 1, lease
    FROM ended WHERE cancel_requested_at IS NULL
),
cancelled AS (
    INSERT INTO awa.dead (state, {carried}, run_at, errors, attempt, lease, worker_id, attempted_at)
    SELECT 'cancelled', {carried}, run_at, awa.append_error(errors, attempt, 'cancelled by user', worker_id),
           attempt, lease, worker_id, attempted_at
    FROM ended WHERE cancel_requested_at IS NOT NULL
),
notified AS MATERIALIZED (SELECT awa.wake(NULL, min(next_run)) FROM ended)
SELECT ended.id FROM ended CROSS JOIN notified
