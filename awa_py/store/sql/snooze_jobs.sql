-- running → scheduled, the attempt given back; or cancelled, where somebody asked for it. The lease guards each row.
-- $1 ids · $2 leases · $3 delays
WITH ended AS (
    DELETE FROM awa.running r
    USING unnest($1::bigint[], $2::int[], $3::interval[]) AS snoozed(id, lease, delay)
    WHERE r.id = snoozed.id AND r.lease = snoozed.lease
    RETURNING r.*, now() + snoozed.delay AS later
),
put AS (
    INSERT INTO awa.scheduled (state, {carried}, run_at, errors, attempt, lease)
    SELECT 'scheduled', {carried}, later, errors, attempt - 1, lease
    FROM ended WHERE cancel_requested_at IS NULL
),
buried AS (
    INSERT INTO awa.dead (state, {carried}, run_at, errors, attempt, lease, worker_id, attempted_at)
    SELECT 'cancelled', {carried}, run_at, awa.with_error(errors, attempt, 'cancelled by user'), attempt, lease,
           worker_id, attempted_at
    FROM ended WHERE cancel_requested_at IS NOT NULL
),
woken AS MATERIALIZED (SELECT awa.wake(NULL, min(later)) FROM ended)
SELECT ended.id FROM ended CROSS JOIN woken
