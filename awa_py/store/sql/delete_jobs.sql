-- Delete jobs that are not running.
-- $1 ids · $2 the state and the lease that each job must have, a JSON object: {"17": "available 0"} (NULL: any)
WITH seen AS MATERIALIZED (SELECT $2::text::jsonb AS by_id),
ready AS (
    DELETE FROM awa.ready
    WHERE id = ANY ($1::bigint[]) AND ($2::text IS NULL OR (SELECT by_id FROM seen) ->> id::text = 'available ' || lease)
    RETURNING id
),
scheduled AS (
    DELETE FROM awa.scheduled
    WHERE id = ANY ($1::bigint[]) AND ($2::text IS NULL OR (SELECT by_id FROM seen) ->> id::text = state || ' ' || lease)
    RETURNING id
),
completed AS (
    DELETE FROM awa.completed
    WHERE id = ANY ($1::bigint[]) AND ($2::text IS NULL OR (SELECT by_id FROM seen) ->> id::text = 'completed ' || lease)
    RETURNING id
),
dead AS (
    DELETE FROM awa.dead
    WHERE id = ANY ($1::bigint[]) AND ($2::text IS NULL OR (SELECT by_id FROM seen) ->> id::text = state || ' ' || lease)
    RETURNING id
)
SELECT id FROM ready UNION ALL SELECT id FROM scheduled UNION ALL SELECT id FROM completed UNION ALL SELECT id FROM dead
