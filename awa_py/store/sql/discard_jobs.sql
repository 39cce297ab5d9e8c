-- running → failed or cancelled, whatever attempts are left. Lease and worker guard each row.
-- $1 ids · $2 leases · $3 worker id · $4 states: failed or cancelled · $5 error texts
-- $6 further fields of the errors, JSON objects
-- Returns the ids that the worker held.
WITH ended AS (
    DELETE FROM awa.running
    WHERE id = ANY ($1::bigint[])
      AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int
      AND worker_id = $3
    RETURNING *, (SELECT jsonb_object($1::bigint[]::text[], $4::text[])) ->> id::text AS state,
              (SELECT jsonb_object($1::bigint[]::text[], $5::text[])) ->> id::text AS error,
              ((SELECT jsonb_object($1::bigint[]::text[], $6::text[])) ->> id::text)::jsonb AS details
),
discarded AS (
    INSERT INTO awa.dead (state, {carried}, run_at, errors, attempt, lease, worker_id, attempted_at)
    SELECT state, {carried}, run_at, awa.append_error(errors, attempt, error, worker_id, details), attempt, lease,
           worker_id, attempted_at
    FROM ended
)
SELECT id FROM ended
