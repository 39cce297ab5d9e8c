-- Delete jobs that are not running.
-- $1 ids · $2 states and $3 leases that the jobs must have (both NULL: any)
WITH wanted AS (SELECT * FROM unnest($1::bigint[], $2::text[], $3::int[]) AS w(job_id, in_state, with_lease)),
ready AS (
    DELETE FROM awa.ready USING wanted
    WHERE id = job_id AND (in_state IS NULL OR (in_state = 'available' AND lease = with_lease))
    RETURNING id
),
scheduled AS (
    DELETE FROM awa.scheduled USING wanted
    WHERE id = job_id AND (in_state IS NULL OR (in_state = state AND lease = with_lease))
    RETURNING id
),
completed AS (
    DELETE FROM awa.completed USING wanted
    WHERE id = job_id AND (in_state IS NULL OR (in_state = 'completed' AND lease = with_lease))
    RETURNING id
),
dead AS (
    DELETE FROM awa.dead USING wanted
    WHERE id = job_id AND (in_state IS NULL OR (in_state = state AND lease = with_lease))
    RETURNING id
)
SELECT id FROM ready UNION ALL SELECT id FROM scheduled UNION ALL SELECT id FROM completed UNION ALL SELECT id FROM dead
