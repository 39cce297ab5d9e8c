-- running → failed or cancelled, whatever attempts are left. The lease guards each row.
-- $1 ids · $2 leases · $3 states: failed or cancelled · $4 error texts
WITH ended AS (
    DELETE FROM awa.running
    WHERE id = ANY ($1::bigint[])
      AND lease = ((SELECT jsonb_object($1::bigint[]::text[], $2::int[]::text[])) ->> id::text)::int
    RETURNING *, (SELECT jsonb_object($1::bigint[]::text[], $3::text[])) ->> id::text AS state,
              (SELECT jsonb_object($1::bigint[]::text[], $4::text[])) ->> id::text AS error
),
put AS (
    INSERT INTO awa.dead (state, {carried}, run_at, errors, attempt, lease, worker_id, attempted_at)
    SELECT state, {carried}, run_at, awa.with_error(errors, attempt, error), attempt, lease, worker_id, attempted_at
    FROM ended
)
SELECT id FROM ended
