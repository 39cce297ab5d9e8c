-- Enqueue a job for each fire time and record them, or do nothing. Compare-and-swap on last_enqueued_at, so that one of
-- two evaluating processes wins, and on what the fire times were computed from.
-- $1 name · $2 the last_enqueued_at that the caller saw · $3 fire times, oldest first
-- $4 the last fire time that is handled now, NULL: none · $5 the next fire time, 'infinity': none
-- $6 expression and $7 timezone that the caller saw
-- Returns the ids of the jobs in the order of $3; none if another process won.
WITH won AS (
    UPDATE awa.cron
    SET last_enqueued_at = coalesce($4::timestamptz, last_enqueued_at), next_at = $5::timestamptz
    WHERE name = $1 AND enabled AND NOT paused AND last_enqueued_at IS NOT DISTINCT FROM $2::timestamptz
      AND expression = $6 AND timezone = $7
    RETURNING name, kind, args, options
),
enqueued AS MATERIALIZED (
    SELECT job.id, job.n
    FROM won CROSS JOIN LATERAL awa.enqueue_many((
        SELECT jsonb_agg(won.options || jsonb_build_object(
                   'kind', won.kind, 'args', won.args,
                   'metadata', coalesce(won.options -> 'metadata', '{}')
                               || jsonb_build_object('cron', won.name, 'fire_time', fire)))
        FROM unnest($3::timestamptz[]) AS fire)) AS job
)
SELECT coalesce(array_agg(id ORDER BY n), '{}') AS ids FROM enqueued
