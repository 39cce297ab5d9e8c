-- The kinds of the first available jobs of queues that no live worker of the queue can run. Workers skip such jobs, so
-- they pile up there.
-- $1 queues · $2 how many jobs to check, per queue and priority · $3 staleness
WITH heads AS MATERIALIZED (
    SELECT head.queue, head.kind
    FROM unnest($1::text[]) AS wanted(queue)
    CROSS JOIN unnest('{1,2,3,4}'::smallint[]) AS level(priority)
    CROSS JOIN LATERAL (
        SELECT queue, kind FROM awa.ready
        WHERE queue = wanted.queue AND priority = level.priority AND concurrency_key IS NULL
        ORDER BY pos LIMIT $2) AS head
    UNION ALL
    SELECT head.queue, head.kind
    FROM unnest($1::text[]) AS wanted(queue)
    CROSS JOIN LATERAL (
        SELECT queue, kind FROM awa.ready
        WHERE queue = wanted.queue AND concurrency_key IS NOT NULL
        ORDER BY concurrency_key, priority, id LIMIT $2) AS head
)
SELECT queue, kind, count(*)::int AS jobs
FROM heads
WHERE NOT EXISTS (SELECT FROM awa.workers w
                  WHERE w.heartbeat_at > now() - $3::interval
                    AND heads.queue = ANY (w.queues) AND heads.kind = ANY (w.kinds))
GROUP BY queue, kind
ORDER BY queue, kind
