-- running → available; or cancelled, if requested. The attempt does not count: the worker stops before it could finish.
-- Lease and worker guard each row.
-- $1 ids · $2 leases · $3 worker id
-- Returns the ids that the worker held.
WITH ended AS (
    DELETE FROM awa.running
    WHERE id = ANY ($1::bigint[])
      AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int
      AND worker_id = $3
    RETURNING *
),
released AS (
    INSERT INTO awa.ready ({carried}, run_at, errors, attempt, lease)
    SELECT {carried}, run_at, errors, attempt - 1, lease
    FROM ended WHERE cancel_requested_at IS NULL
),
cancelled AS (
    INSERT INTO awa.dead (state, {carried}, run_at, errors, attempt, lease, worker_id, attempted_at)
    SELECT 'cancelled', {carried}, run_at, awa.append_error(errors, attempt, 'cancelled by user', worker_id),
           attempt, lease, worker_id, attempted_at
    FROM ended WHERE cancel_requested_at IS NOT NULL
),
notified AS MATERIALIZED (SELECT awa.wake(array_agg(DISTINCT queue), NULL) FROM ended)
SELECT ended.id FROM ended CROSS JOIN notified
