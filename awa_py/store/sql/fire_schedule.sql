-- Marks the fire times as enqueued and enqueues a job for each, or none of it: compare-and-swap on the previous
-- last_enqueued_at, so that of two evaluators one wins, and on what the fire times were worked out from.
-- $1 name · $2 the last_enqueued_at that the caller saw · $3 fire times, oldest first · $4 the last fire time that
-- counts as dealt with, NULL: none · $5 the next fire time, 'infinity': none
-- $6 expression and $7 timezone that the caller saw
WITH won AS (
    UPDATE awa.cron
    SET last_enqueued_at = coalesce($4::timestamptz, last_enqueued_at), next_at = $5::timestamptz
    WHERE name = $1 AND enabled AND NOT paused AND last_enqueued_at IS NOT DISTINCT FROM $2::timestamptz
      AND expression = $6 AND timezone = $7
    RETURNING name, kind, args, options
),
enqueued AS MATERIALIZED (
    SELECT job.id
    FROM won CROSS JOIN LATERAL awa.enqueue_many((
        SELECT jsonb_agg(won.options || jsonb_build_object(
                   'kind', won.kind, 'args', won.args,
                   'metadata', coalesce(won.options -> 'metadata', '{}')
                               || jsonb_build_object('cron', won.name, 'fire_time', fire)))
        FROM unnest($3::timestamptz[]) AS fire)) AS job
)
SELECT coalesce(array_agg(id), '{}') FROM enqueued
