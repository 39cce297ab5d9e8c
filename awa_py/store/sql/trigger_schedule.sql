-- Enqueue a schedule's job now, whatever its times. The schedule itself does not change.
-- $1 name
SELECT job.id
FROM awa.cron CROSS JOIN LATERAL awa.enqueue_many(jsonb_build_array(
    cron.options || jsonb_build_object(
        'kind', cron.kind, 'args', cron.args,
        'metadata', coalesce(cron.options -> 'metadata', '{}')
                    || jsonb_build_object('cron', cron.name, 'triggered_at', now())))) AS job
WHERE cron.name = $1
