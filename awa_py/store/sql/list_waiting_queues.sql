-- The queues that have available jobs: their number up to a limit, how long the first one has waited, whether the queue
-- is paused, limited or throttled, and the number of live workers. Walks from queue to queue by index.
-- $1 at most this many queues · $2 count jobs up to this number · $3 staleness: workers that were silent for longer are
-- dead
WITH RECURSIVE walk AS (
    (SELECT queue FROM awa.ready WHERE concurrency_key IS NULL ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT queue FROM awa.ready WHERE concurrency_key IS NULL AND queue > walk.queue ORDER BY queue LIMIT 1)
    FROM walk WHERE walk.queue IS NOT NULL
),
walk_keyed AS (
    (SELECT queue FROM awa.ready WHERE concurrency_key IS NOT NULL ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT queue FROM awa.ready WHERE concurrency_key IS NOT NULL AND queue > walk_keyed.queue ORDER BY queue LIMIT 1)
    FROM walk_keyed WHERE walk_keyed.queue IS NOT NULL
),
named AS MATERIALIZED (
    (SELECT queue FROM walk WHERE queue IS NOT NULL LIMIT $1)
    UNION
    (SELECT queue FROM walk_keyed WHERE queue IS NOT NULL LIMIT $1)
    LIMIT $1
)
SELECT named.queue AS name,
       (SELECT count(*) FROM (
            (SELECT FROM awa.ready WHERE queue = named.queue AND concurrency_key IS NULL LIMIT $2)
            UNION ALL
            (SELECT FROM awa.ready WHERE queue = named.queue AND concurrency_key IS NOT NULL LIMIT $2)
            LIMIT $2) AS first_ones)::int AS jobs,
       (SELECT extract(epoch FROM now() - min(run_at))::float8 FROM (
            (SELECT run_at FROM awa.ready
             WHERE queue = named.queue AND concurrency_key IS NULL ORDER BY priority, pos LIMIT 1)
            UNION ALL
            (SELECT run_at FROM awa.ready
             WHERE queue = named.queue AND concurrency_key IS NOT NULL ORDER BY concurrency_key, priority, id LIMIT $2)
        ) AS heads) AS waited_s,
       coalesce(q.paused AND q.paused_until > now() IS NOT FALSE, false) AS paused, q.paused_until,
       {throttles} AS throttles,
       CASE WHEN q.throttled_until > now() THEN extract(epoch FROM q.throttled_until - now())::float8 END AS cooldown_s,
       q.max_workers,
       CASE WHEN q.max_workers IS NULL THEN 0
            ELSE (SELECT count(*) FROM awa.running_of_queue(named.queue)) END::int AS running,
       (SELECT count(*) FROM awa.workers w
        WHERE w.heartbeat_at > now() - $3::interval AND named.queue = ANY (w.queues))::int AS workers
FROM named LEFT JOIN awa.queues q ON q.name = named.queue
ORDER BY named.queue
