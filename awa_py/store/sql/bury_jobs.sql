-- running → failed or cancelled, whatever attempts are left. The lease guards each row.
-- $1 ids · $2 leases · $3 states: failed or cancelled · $4 error texts
WITH ended AS (
    DELETE FROM awa.running r
    USING unnest($1::bigint[], $2::int[], $3::text[], $4::text[]) AS buried(id, lease, state, error)
    WHERE r.id = buried.id AND r.lease = buried.lease
    RETURNING r.*, buried.state, buried.error
),
put AS (
    INSERT INTO awa.dead (state, {carried}, run_at, errors, attempt, lease, worker_id, attempted_at)
    SELECT state, {carried}, run_at, awa.with_error(errors, attempt, error), attempt, lease, worker_id, attempted_at
    FROM ended
)
SELECT id FROM ended
