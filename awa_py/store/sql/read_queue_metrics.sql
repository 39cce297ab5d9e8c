-- Every queue that has a row or an available job: whether it is paused, how long its first job has been due, and the
-- number of live workers. A few index lookups per queue, however many jobs it has.
-- $1 staleness: workers that were silent for longer are dead
--
-- Walks from queue to queue by index: it reads one job of each queue and priority, and the first ten with a concurrency
-- key.
WITH RECURSIVE waiting(name) AS (
    (SELECT queue FROM awa.ready WHERE concurrency_key IS NULL ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT queue FROM awa.ready WHERE concurrency_key IS NULL AND queue > waiting.name ORDER BY queue LIMIT 1)
    FROM waiting WHERE waiting.name IS NOT NULL
),
waiting_keyed(name) AS (
    (SELECT queue FROM awa.ready WHERE concurrency_key IS NOT NULL ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT queue FROM awa.ready WHERE concurrency_key IS NOT NULL AND queue > waiting_keyed.name
            ORDER BY queue LIMIT 1)
    FROM waiting_keyed WHERE waiting_keyed.name IS NOT NULL
),
named AS (
    SELECT name FROM waiting WHERE name IS NOT NULL
    UNION SELECT name FROM waiting_keyed WHERE name IS NOT NULL
    UNION SELECT name FROM awa.queues
),
served AS (
    SELECT served.name, count(*) AS workers
    FROM awa.workers, unnest(queues) AS served(name)
    WHERE heartbeat_at > now() - $1::interval
    GROUP BY served.name
)
SELECT named.name, coalesce(q.paused AND q.paused_until > now() IS NOT FALSE, false) AS paused,
       coalesce((SELECT greatest(date_part('epoch', now() - min(head.run_at)), 0)
                 FROM (SELECT first.run_at
                       FROM unnest('{1,2,3,4}'::smallint[]) AS level(priority)
                       CROSS JOIN LATERAL (SELECT run_at FROM awa.ready
                                           WHERE queue = named.name AND priority = level.priority
                                             AND concurrency_key IS NULL
                                           ORDER BY pos LIMIT 1) AS first
                       UNION ALL
                       (SELECT run_at FROM awa.ready
                        WHERE queue = named.name AND concurrency_key IS NOT NULL
                        ORDER BY concurrency_key, priority, id LIMIT 10)) AS head), 0)::float8 AS waiting_s,
       coalesce(served.workers, 0) AS workers, coalesce(q.throttled_until > now(), false) AS throttled, q.max_workers
FROM named LEFT JOIN awa.queues q USING (name) LEFT JOIN served USING (name)
