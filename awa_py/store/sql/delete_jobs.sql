-- Delete jobs that are not running, with what they remember.
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
),
deleted AS (SELECT id FROM ready UNION ALL SELECT id FROM scheduled UNION ALL SELECT id FROM completed UNION ALL SELECT id FROM dead),
payloads AS (DELETE FROM awa.payloads WHERE job_id = ANY (ARRAY(SELECT id FROM deleted))),
remembered AS (DELETE FROM awa.checkpoints WHERE job_id = ANY (ARRAY(SELECT id FROM deleted))),
signalled AS (DELETE FROM awa.signals WHERE job_id = ANY (ARRAY(SELECT id FROM deleted))),
signal_keys AS (DELETE FROM awa.signal_keys WHERE job_id = ANY (ARRAY(SELECT id FROM deleted))),
results AS (DELETE FROM awa.kept_results WHERE parent_id = ANY (ARRAY(SELECT id FROM deleted)))
SELECT id FROM deleted
