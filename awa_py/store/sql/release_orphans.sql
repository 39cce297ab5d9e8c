-- running → available for what this worker claimed without ever hearing of it: the connection broke between the
-- claim's commit and its answer. The attempt is given back. Only the worker itself may ask.
-- $1 worker id · $2 the ids that it knows of
WITH ended AS (
    DELETE FROM awa.running r
    WHERE r.worker_id = $1 AND r.id <> ALL ($2::bigint[])
    RETURNING r.*
),
put AS (
    INSERT INTO awa.ready ({carried}, run_at, errors, attempt, lease)
    SELECT {carried}, run_at, errors, attempt - 1, lease
    FROM ended WHERE cancel_requested_at IS NULL
),
buried AS (
    INSERT INTO awa.dead (state, {carried}, run_at, errors, attempt, lease, worker_id, attempted_at)
    SELECT 'cancelled', {carried}, run_at, awa.with_error(errors, attempt, 'cancelled by user'), attempt, lease,
           worker_id, attempted_at
    FROM ended WHERE cancel_requested_at IS NOT NULL
),
woken AS MATERIALIZED (SELECT awa.wake(array_agg(DISTINCT queue), NULL) FROM ended)
SELECT ended.id FROM ended CROSS JOIN woken
